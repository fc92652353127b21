"""Joining a run as a library call: where the core, the features and the tasks of a training peer come together."""
