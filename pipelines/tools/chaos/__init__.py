"""`dalle-collab chaos`: a small swarm on this machine, a seeded script of faults, and their effect."""
