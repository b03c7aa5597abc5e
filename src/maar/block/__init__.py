"""The file formats of segments and blocks: reading, writing, merging."""
