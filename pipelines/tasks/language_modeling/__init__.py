"""Masked and causal language models of transformers on any text dataset of the Hub; knows nothing about pictures.

May import `run`, `state`, `metrics`, `tasks.streaming`, `memory_estimate` and `hub_tools`.
"""
