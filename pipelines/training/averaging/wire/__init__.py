"""How parts of tensors travel: codecs, parallel streams, their ends."""
