"""Names, paths and errors as the Hub's protocol prescribes them. Imports nothing of ours."""
