"""Auxiliary peers that the organiser vouches for: what they do, and what they sign."""
