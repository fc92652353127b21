"""CLIP: ranking pictures by caption, and training a small CLIP."""
