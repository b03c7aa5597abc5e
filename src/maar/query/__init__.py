"""Answer questions over an immutable view of the index."""
