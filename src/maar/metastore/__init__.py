"""The lake's index and plans: a state that is computed only by applying the log in order."""
