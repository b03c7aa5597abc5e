"""What the leader decides before it appends: from the state and a request to entries. Pure."""
