"""Plans, their leases and attempts, from their creation to their end."""
