"""Ranking pictures for others: a server with the run's CLIP scores candidates for people who do not want to load it."""
