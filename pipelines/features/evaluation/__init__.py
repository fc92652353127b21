"""How good a checkpoint is: pictures, loss, codec."""
