"""Using a model whose layers others serve: chains of servers, their failures, and what can be learnt through them."""
