"""How much memory training takes. May import the model and `hub_tools`."""
