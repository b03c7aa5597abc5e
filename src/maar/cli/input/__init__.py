"""What a person types: options, times and short names of profile types."""
