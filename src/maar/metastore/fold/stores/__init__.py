"""Objects of blocks, and their copies in several stores."""
