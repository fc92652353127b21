"""One round of averaging among strangers. May import `run`, `admission`, `swarm`."""
