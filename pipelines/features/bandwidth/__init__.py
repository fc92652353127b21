"""Who reduces how much of the vector: what links reach, what is claimed and witnessed of them, and the shares."""
