"""Serving a run's model to others, and using what others serve."""
