"""Serving consecutive layers of a run's model, and running the model across a chain of such servers.

Words: a *span* is the layers from `start` up to, not including, `end`; a *hop* is one server's part of a chain; the
*streams* are what layers pass on: two tensors in the DALL-E model, one in language models.
"""
