"""How blocks leave the index: replaced, expired, deleted or lost."""
