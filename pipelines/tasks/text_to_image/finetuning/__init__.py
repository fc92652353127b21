"""Fine-tuning a published model on your own pictures. May import the model, `image_codes` and the task."""
