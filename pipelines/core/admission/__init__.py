"""Who may join: tokens, the client that requests them, and the gates for a peer's calls."""
