"""A training peer's side of the ledger: its lease, and what came of it."""
