"""How much memory training takes: pure arithmetic. May import `hub_tools`."""
