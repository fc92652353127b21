"""Weights of other programs for the same model, made into a folder that loads here and on the Hub."""
