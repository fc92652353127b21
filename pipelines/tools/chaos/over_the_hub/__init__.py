"""Chaos in a run whose only wire is the Hub: its faults, and its peers."""
