"""Reducing the peers' parts: the robust rule, the reducer, reports of misbehaviour."""
