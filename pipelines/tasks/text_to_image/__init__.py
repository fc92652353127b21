"""The text-to-image task: the only folder of `training` that knows captions and image codes."""
