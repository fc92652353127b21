"""The process of a DHT node, whose parent may end at any moment."""

import contextlib

import psutil

from pipelines.core.admission.dht_gate import SwarmDHT


def test_a_node_whose_parent_ends_in_the_middle_of_a_call_ends_without_an_error():
    dht = SwarmDHT(admission=None, host_maddrs=["/ip4/127.0.0.1/tcp/0"], use_ipfs=False, start=True)
    daemons = psutil.Process(dht.pid).children(recursive=True)
    try:
        dht._outer_pipe.send_bytes(b"")  # what unpickling makes of it is what it makes of a sender that is gone
        dht.join(20)
        assert dht.exitcode == 0
    finally:
        dht.kill()
        for daemon in daemons:
            with contextlib.suppress(psutil.NoSuchProcess):
                daemon.kill()
        psutil.wait_procs(daemons)
