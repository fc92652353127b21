"""Hostile participants by name: one process with one DHT node that lies, floods or stalls."""
