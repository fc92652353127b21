"""The same emoji drawn in four styles: what a model can draw that it was never trained on."""
