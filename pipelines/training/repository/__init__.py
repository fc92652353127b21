"""The run's repository on the Hub: head, manifest, keys, tags, rollback. May import `run`, `hub_tools`."""
