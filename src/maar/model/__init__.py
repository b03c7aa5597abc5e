"""The nouns of the domain. Imports nothing else of ours."""
