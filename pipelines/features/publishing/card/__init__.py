"""The card of a published checkpoint, whatever the task. May import `run`, `metrics`."""
