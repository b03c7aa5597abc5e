"""The page, and the module that serves it."""
