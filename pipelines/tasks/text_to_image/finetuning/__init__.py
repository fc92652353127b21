"""Fine-tuning a published model on your own pictures."""
