"""Free ports of this machine."""

import socket


def take_ports(first: int, number: int) -> list[int]:
    """Return ports of the loopback interface: the first ones from `first` on that are free."""
    found = []
    for port in range(first, 2**16):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == number:
            return found
    raise OSError(f"This machine has no {number} free ports from {first} on. Close other programs.")
