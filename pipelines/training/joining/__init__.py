"""Giving a machine to a run from a page or a notebook: settings, who may do it, the trainer's life, and its look."""
