"""How good a language model's checkpoint is: on held-out text, and on labelled text after a short fine-tuning."""
