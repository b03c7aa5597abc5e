"""One module for each noun that the user says."""
