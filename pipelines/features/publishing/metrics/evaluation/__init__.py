"""Evaluations of a run's states, as files, for cards and for leaderboards: held-out losses, figures of checkpoints."""
