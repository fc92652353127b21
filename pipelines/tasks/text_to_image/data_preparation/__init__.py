"""Turns captioned pictures into Parquet shards of image codes."""
