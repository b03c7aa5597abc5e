"""A trivial kind of plan: a segment is put aside as it is, with a stamp."""
