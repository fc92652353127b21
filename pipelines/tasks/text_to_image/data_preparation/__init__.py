"""Turns captioned pictures into Parquet shards of image codes. May import `image_codes`."""
