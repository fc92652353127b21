"""Whether peers can be reached from outside: calls to their addresses, by this machine and by other peers."""
