"""Deletes what nobody needs: retired blocks and their copies, deleted profiles, orphans (S1)."""
