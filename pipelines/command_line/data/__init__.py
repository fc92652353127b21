"""`dalle-collab data`: turn captioned pictures into shards of image codes, and inspect them."""
