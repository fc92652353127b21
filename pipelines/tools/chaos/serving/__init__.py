"""What serves the model in a chaos run, who uses it, and who only claims to serve it."""
