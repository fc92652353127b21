"""The run's figures: history, contributions, report, reel, trackers."""
