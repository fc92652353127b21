"""Rounds over the Hub alone: peers give and take their progress as files, and need no port, relay or hivemind."""
