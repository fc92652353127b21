"""How good a checkpoint is: pictures, loss, codec. May import `generation`, `clip`, `image_codes` and tasks."""
