"""The drawing page: requests, waiting times, published checkpoints, pictures seen in training."""
