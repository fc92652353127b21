"""Jobs: they are taken, listed and cancelled as on the public Hub, and never run."""
