"""Connect, gRPC and gRPC-Web: one message in, one message out."""
