"""Serving a run's model, and using what others serve, on the terminal."""
