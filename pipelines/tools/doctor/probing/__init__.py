"""What can be seen of a swarm without taking part."""
