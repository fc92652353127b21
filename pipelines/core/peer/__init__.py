"""A training peer, and the processes around it. Never imports `tasks`."""
