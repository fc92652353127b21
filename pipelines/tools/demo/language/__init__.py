"""Real English text for the demo's language models, and what n-grams came to, which they must beat."""
