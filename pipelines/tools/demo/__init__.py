"""The whole system, small, on one machine."""
