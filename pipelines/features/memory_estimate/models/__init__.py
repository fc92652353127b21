"""What follows from a model's sizes alone."""
