"""Whether this machine can take part in a run, and whether a run is in order. Imports `training`, `memory_estimate`."""
