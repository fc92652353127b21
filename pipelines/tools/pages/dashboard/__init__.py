"""The training dashboard: what a run's repository and its swarm say, as text, tables and charts."""
