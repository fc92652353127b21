"""Real English text for the demo's language models, and the n-gram models that they must beat.

May import `tasks.streaming` and `tasks.language_modeling`.
"""
