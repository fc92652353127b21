"""What single layers and models hold in memory: the formulas. Imports nothing else of ours."""
