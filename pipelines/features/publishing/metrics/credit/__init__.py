"""Who has contributed how much, and on which hardware: claims, what bears them out, and their files."""
