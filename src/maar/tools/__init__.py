"""Commands beside the server's own work: a load, a simulation, a demo. No role imports them."""
