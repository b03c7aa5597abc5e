"""The leader's decisions: from the state and a request to the entries to append. Pure."""
