"""The training state: averaged, digested, transferred, kept as files."""
