"""What a person reads: tables, trees, plans, and how a command fails."""
