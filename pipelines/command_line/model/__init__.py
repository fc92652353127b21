"""`dalle-collab model`: converting and fine-tuning."""
