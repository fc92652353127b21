"""Masked and causal language models of transformers on any text dataset of the Hub; knows nothing about pictures."""
