"""Optimizers that a run may step with besides those of the core, by the names in its settings."""
