"""Storage Buckets: folders of files without a history, whose contents arrive through Xet."""
