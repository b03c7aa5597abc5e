"""Repair: every copy of a block is read again, checked, and made anew where it is not whole."""
