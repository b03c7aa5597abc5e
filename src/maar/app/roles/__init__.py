"""Each role in its process: built from the settings, run, watched and stopped."""
