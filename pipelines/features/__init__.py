"""What plugs into the core, which knows none of it: no feature imports another but those that the import test lists."""
