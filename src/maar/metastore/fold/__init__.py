"""How an entry changes the state: the only code that does. Pure."""
