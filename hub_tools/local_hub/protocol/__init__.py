"""Names, paths and errors as the Hub's protocol prescribes them. Imports nothing else of this project."""
