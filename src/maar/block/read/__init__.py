"""Reads objects of the lake back: verified, examined when damaged, restored to profiles."""
