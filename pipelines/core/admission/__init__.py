"""Who may join: tokens, the service that signs them, the client that requests them, and gates for a peer's calls.

It gets values from a run, such as a `AdmissionConfig`. May import `hub_tools`.
"""
