"""Prompt to image codes to pictures, ranked; and the index of training pictures. May import `clip`, `image_codes`."""
