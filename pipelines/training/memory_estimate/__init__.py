"""How much memory a training step needs, before it is run. Pure arithmetic: no torch, no download, no device."""
