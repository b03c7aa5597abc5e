"""Small real parts that tests share."""
