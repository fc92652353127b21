"""Rings: `core` knows no feature, `features` and `tasks` know the core, `tools` and `command_line` all."""
