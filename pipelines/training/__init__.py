"""Training together: the run all peers share, the peers, what they exchange, and the peer that publishes."""
