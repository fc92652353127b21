"""`dalle-collab`: one file per noun, put together in `main`."""
