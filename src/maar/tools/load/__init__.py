"""`maar load`: the pushes of many services."""
