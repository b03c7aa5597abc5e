"""Tools around the server: load generator, simulation, demo. No role imports them."""
