"""Converts other programs' weights for the same model into a folder that loads here and on the Hub."""
