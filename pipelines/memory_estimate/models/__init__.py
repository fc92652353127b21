"""The formulas for the memory of layers and models. Imports nothing else of ours."""
