"""Narrow protocols for everything outside a package; adapters/ implements them."""
