"""Commands that run as Jobs of the Hub instead of here."""
