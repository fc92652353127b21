"""How much memory training takes. May import the model, a run's settings and `hub_tools`."""
