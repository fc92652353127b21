"""The page about a prepared dataset: one file that anybody can open."""
