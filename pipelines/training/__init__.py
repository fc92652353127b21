"""Training together. One folder a mechanism; from the ground up: `run` to `peer` and `auxiliary`."""
