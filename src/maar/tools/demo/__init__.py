"""`maar demo`: a server and sample programs that push to it."""
