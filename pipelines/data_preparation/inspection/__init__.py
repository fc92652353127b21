"""What a folder of shards holds, whether it is whole, and how it differs from another."""
