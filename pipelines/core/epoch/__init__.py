"""One epoch: gather samples, average, step; and local steps. The parts are hivemind's, or on top of them."""
