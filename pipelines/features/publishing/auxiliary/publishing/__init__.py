"""Checkpoints and what is shown of a run, from the disk to the Hub: who publishes, what waits, each in one commit."""
