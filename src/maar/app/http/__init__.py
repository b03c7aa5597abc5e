"""The one port: HTTP/1.1 and HTTP/2, bounded in time, size and number."""
