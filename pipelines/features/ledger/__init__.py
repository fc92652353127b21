"""Who trained on what: one order of the data for the whole run, leases of its blocks, and what came of them."""
