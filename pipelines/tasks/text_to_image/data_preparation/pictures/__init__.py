"""From the bytes of a picture to a square of pixels, in processes that may die. Light: no torch."""
