"""Peers call each other by names that the protocol fixes, not by those of classes."""

import asyncio

import pytest
from hivemind.p2p import P2P

from pipelines.features.reachability.dial_back import DialBack, ask_for_dial_back

# hivemind 1.1.12 finds its daemon's executable in an old-fashioned way.
pytestmark = pytest.mark.filterwarnings("ignore:path is deprecated:DeprecationWarning")


class AnotherDialBack(DialBack):
    """What a renamed class looks like to peers of an older version."""

    async def rpc_later(self, request, context):
        raise NotImplementedError

    rpc_later.__annotations__ = DialBack.rpc_dial_back.__annotations__


def test_a_class_of_another_name_answers_those_who_know_the_old_one():
    async def ask():
        first = await P2P.create()
        second = await P2P.create(initial_peers=await first.get_visible_maddrs())
        try:
            DialBack.get_stub(first, second.peer_id)  # the parent's list of calls must not become the child's
            await AnotherDialBack(first).add_p2p_handlers(first)
            reply = await ask_for_dial_back(second, first.peer_id, [], timeout=30)
            return reply, hasattr(AnotherDialBack.get_stub(second, first.peer_id), "rpc_later")
        finally:
            await second.shutdown()
            await first.shutdown()

    reply, has_a_call_of_its_own = asyncio.run(ask())
    assert reply is not None and reply[1] == []
    assert has_a_call_of_its_own
