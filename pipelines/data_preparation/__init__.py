"""Pictures with captions to Parquet shards of image codes. May import `image_codes`."""
