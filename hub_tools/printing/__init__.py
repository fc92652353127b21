"""Foreign text made printable, and where commands print."""
