"""maar's roles as processes of their own."""
