"""The auxiliary peer: it keeps the state, publishes checkpoints and evaluates. Never imports `tasks`."""
