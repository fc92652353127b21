"""What follows from a model's sizes alone. May import the model."""
