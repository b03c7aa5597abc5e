"""What distributors and segment writers ask."""
