"""Sparse progress of peers with local steps: its bytes, error feedback, the mean. May import `equal_arithmetic`."""
