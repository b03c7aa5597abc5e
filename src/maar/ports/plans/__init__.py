"""What whoever executes plans asks."""
