"""Publishing folders, datasets and Spaces to the Hub, and bundling the Spaces."""
