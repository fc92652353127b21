"""Published codecs, read from the checkpoints of other projects without running any code in them."""
