"""Objects of the lake read back: checked, looked at when damaged, restored to profiles."""
