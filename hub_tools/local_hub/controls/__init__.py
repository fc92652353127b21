"""For tests: faults of the embedded Hub on purpose, limits of how often one may ask it, and counts of who asked."""
