"""One epoch: gather samples, average, step; and local steps. What is left of `hivemind.Optimizer`."""
