"""A scheduled kind for tests: jobs with parts, resources and types."""
