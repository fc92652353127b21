"""Who may join: tokens, the service that signs them, the client that asks, and gates before a peer's calls."""
