"""Keys that organisers, publishers and anchors sign with."""
