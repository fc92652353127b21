"""How tensor parts are sent: codecs, parallel streams, closing streams."""
