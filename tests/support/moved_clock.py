"""A DHT node whose machine's clock is moved by hours before it joins, or afterwards.

Usage: python moved_clock.py ADDRESS SECONDS_AT_THE_START SECONDS_LATER. Prints `joined`, and what it reads with the
clock moved; the log goes to stderr. Errors are printed in one line, as commands do.
"""

import logging
import sys
import threading

from pipelines.tools.chaos.faults.skewed_clock import CLOCK

CLOCK.install()
CLOCK.own()
CLOCK.skew(float(sys.argv[2]))

from hub_tools.processes.process_group import guard_process_group  # noqa: E402
from pipelines.core.swarm.network_options import NetworkOptions  # noqa: E402
from pipelines.core.swarm.node import WrongClockError, open_dht  # noqa: E402
from pipelines.features.clock import SECONDS_BETWEEN_LOOKS, watch_clock  # noqa: E402


def main(address: str, later: float) -> None:
    guard_process_group()
    logging.basicConfig(format="%(message)s")
    options = NetworkOptions(host_addresses=("/ip4/127.0.0.1/tcp/0",))
    try:
        with open_dht("test/run", [address], options, admission=None, services=[watch_clock]) as dht:
            print("joined", flush=True)
            CLOCK.skew(later)
            found = dht.get("key", latest=True)
            print("reads", found and found.value, flush=True)
            for line in sys.stdin:  # until the line that is waited for has come
                dht.store("said", line.strip(), found.expiration_time)
            threading.Event().wait(SECONDS_BETWEEN_LOOKS / 10)
    except WrongClockError as error:
        print(error)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[3]))
