"""The card of a published checkpoint, whatever the task."""
