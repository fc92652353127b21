"""Optimizers of a run, their parameter groups and schedule."""
