"""Around a run: examination, memory, pages, demo, attacks. May import all but `command_line`."""
