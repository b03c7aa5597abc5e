"""The page's API over samples in memory, and a browser."""
