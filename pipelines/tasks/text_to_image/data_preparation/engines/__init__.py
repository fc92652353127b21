"""The same shards made by several processes or machines: as parts of an array of jobs, or over a cluster of Ray."""
