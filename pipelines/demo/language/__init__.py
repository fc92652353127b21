"""Real English text for the demo's language models, and the n-gram models that they have to beat.

May import `tasks.streaming` and `tasks.language_modeling`.
"""
