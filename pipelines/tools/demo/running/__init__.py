"""What a demo runs in: its folder, its processes, what is finished of it, and what it tells on the way."""
