"""Who serves the run's model: what its organiser is told."""
