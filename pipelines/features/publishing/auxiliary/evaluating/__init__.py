"""What the auxiliary peer finds out about its states: the held-out loss beside the rounds, checkpoints in a process."""
