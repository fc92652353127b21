"""The run's figures: history, contributions, report, reel, trackers. May import `run`, `repository`, `swarm`."""
