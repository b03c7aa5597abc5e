"""Raw profiles into the five tables of a block."""
