"""Programs that this one starts, and how they end."""
