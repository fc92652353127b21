"""The dashboard's look into the swarm, in a process of its own."""
