"""The run's repository on the Hub: snapshot, commits, manifest, keys, tags, rollback."""
