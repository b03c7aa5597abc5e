"""The files of the lake: segments, the five tables of a block, their order and checksums."""
