"""The whole system, small, on one machine. May import everything but `chaos` and `command_line`."""
