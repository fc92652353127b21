"""Sparse synchronisation: each peer gives the largest values of its progress to all, and all apply the same mean."""
