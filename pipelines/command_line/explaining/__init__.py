"""What the settings of a run mean, in sentences."""
