"""How many bytes a value takes in each part of a step, for each way of computing."""

PRECISIONS = ("fp32", "bf16", "fp16", "pure-bf16", "pure-fp16")
"""float32 throughout; autocast to a half type over float32 weights; weights and everything else in a half type."""
