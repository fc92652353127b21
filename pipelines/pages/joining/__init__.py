"""The joining page: a trainer as a child process, with its settings, progress and permissions."""
