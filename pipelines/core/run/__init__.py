"""What all peers of a run agree on, and what one machine may choose."""
