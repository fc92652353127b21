"""How much memory training takes: arithmetic alone. May import `hub_tools`."""
