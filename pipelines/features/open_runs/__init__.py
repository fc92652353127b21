"""Open runs over the Hub: a stranger asks by a pull request, the auxiliary peer admits him."""
