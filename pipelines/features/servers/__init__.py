"""Who serves the run's model: what servers publish about themselves, and what others make of it."""
