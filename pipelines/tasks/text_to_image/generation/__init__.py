"""Prompt to image codes to pictures, ranked; and the index of training pictures."""
