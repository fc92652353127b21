"""Matchmaking: who is in a round, and how long it may take."""
