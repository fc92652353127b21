"""Fine-tuning a published model on one's own pictures. May import the model, `image_codes` and the task."""
