"""Placement under made-up load on a virtual clock, through the functions that serve real pushes."""
