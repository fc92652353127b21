"""Drawing by others: prompts and seeds in, image codes out, checked by who holds the model.

A code is a function of the weights, the prompt, the seed, the candidate's number and the place, so any server can draw
any candidate, a lost one can be drawn again elsewhere, and a drawn one can be checked.
"""
