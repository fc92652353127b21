"""The auxiliary peer: it holds the state, publishes checkpoints and evaluates. Never imports `tasks`."""
