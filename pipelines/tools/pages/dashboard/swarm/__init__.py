"""The dashboard's view of the swarm, read by a separate process."""
