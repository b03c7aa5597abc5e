"""What the world must do for us, as narrow protocols; adapters/ makes them real."""
