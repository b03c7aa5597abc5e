"""Lakes of real segments and blocks, with a known truth."""
