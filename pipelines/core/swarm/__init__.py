"""A peer's node in the DHT, its signed records, and probes of other nodes. What training and serving both stand on."""
