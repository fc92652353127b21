"""CLIP: ranking pictures by how well they fit a caption, and training a small CLIP. May import `image_codes`."""
