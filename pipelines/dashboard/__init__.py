"""What the dashboard Space shows of a run: readers of the Hub and the swarm, pure views, and text for programs."""
