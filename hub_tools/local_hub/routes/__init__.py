"""The embedded Hub's answers to HTTP requests. May import `store` and `protocol`."""
