"""What whoever reads profiles asks."""
