"""The gradient of one micro-batch, on one or more devices."""
