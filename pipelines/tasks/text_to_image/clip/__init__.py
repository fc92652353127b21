"""CLIP: ranking pictures by caption, and training a small CLIP. May import `image_codes`, `hub_tools`."""
