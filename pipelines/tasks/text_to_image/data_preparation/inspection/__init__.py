"""What a folder of shards holds, and whether it is whole."""
