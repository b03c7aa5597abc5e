"""How test files are shared among worker processes."""
