"""One module per noun that the user says."""
