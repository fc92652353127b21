"""Who may join: tokens, the service that signs them, the client that asks, and gates before a peer's calls.

Of a run it gets values, such as a `Door`. May import `hub_tools`.
"""
