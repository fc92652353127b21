"""How much memory training takes: arithmetic alone. Imports nothing else of ours."""
