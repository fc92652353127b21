"""Parts leave so that all reducers have the same share of theirs, whatever becomes of single streams."""

import asyncio

from pipelines.core.averaging.wire.streams import ProportionalOrder


class Link:
    """Takes one part at a time, in steps that the test makes."""

    def __init__(self):
        self.passed, self.free = [], asyncio.Semaphore(0)

    async def pass_bytes(self, number):
        await self.free.acquire()
        self.passed.append(number)


async def send(order, name, num_parts):
    for index in range(num_parts):
        await order.pass_part(name, (index + 1) / num_parts)


def test_large_and_small_shares_progress_together():
    async def pass_all():
        link = Link()
        order = ProportionalOrder(link.pass_bytes)
        streams = [asyncio.create_task(send(order, name, name)) for name in (2, 4, 8)]  # by their number of parts
        for _ in range(14):
            await asyncio.sleep(0)
            link.free.release()
        await asyncio.gather(*streams)
        return link.passed

    passed = asyncio.run(pass_all())
    for end in range(1, 15):
        shares = [passed[:end].count(number) / number for number in (2, 4, 8)]
        assert max(shares) - min(shares) <= 0.5 + 1e-9, (
            "no reducer is ahead by more than one part of the smallest share"
        )


def test_streams_that_end_or_are_cancelled_hold_up_no_other():
    async def pass_some():
        link = Link()
        order = ProportionalOrder(link.pass_bytes)
        passing, waiting, last = (asyncio.create_task(send(order, name, 1)) for name in (1, 2, 3))
        await asyncio.sleep(0)
        passing.cancel()
        waiting.cancel()
        await asyncio.gather(passing, waiting, return_exceptions=True)
        link.free.release()
        await asyncio.wait_for(last, 60.0)
        return link.passed

    assert asyncio.run(pass_some()) == [3]
