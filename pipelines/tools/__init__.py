"""Around a run: examination, memory, pages, demo, attacks."""
