"""Cleaning: rollbacks of what nobody finished are scheduled in one step, then executed."""
