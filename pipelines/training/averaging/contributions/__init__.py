"""Rounds in which each member gives one small contribution to all: who has which, how it travels, and its mean."""
