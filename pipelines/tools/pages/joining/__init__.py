"""The joining page: a trainer in a child process, with its settings, progress and permissions."""
