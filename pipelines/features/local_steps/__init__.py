"""Steps of each peer of its own between two rounds, in which the peers average their progress (DiLoCo)."""
