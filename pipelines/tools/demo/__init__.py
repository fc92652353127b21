"""The whole system, small, on one machine. May import everything except `chaos` and `command_line`."""
