"""One round of averaging among strangers."""
