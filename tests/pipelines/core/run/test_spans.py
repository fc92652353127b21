import numpy as np
import pytest

from pipelines.core.run.block_order import SHARDS_PER_WINDOW, BlockOrder
from pipelines.core.run.span_source import WholeDataset
from pipelines.core.run.spans import Block, Intervals, Span, record_order


def test_intervals_join_split_and_are_counted():
    held = Intervals([(0, 4), (8, 10), (4, 6)])
    assert list(held) == [(0, 6), (8, 10)] and len(held) == 8 and held
    held.remove((2, 9))
    assert list(held) == [(0, 2), (9, 10)]
    held.remove((0, 100))
    assert not held
    held.add((5, 5))
    assert list(held) == []


def test_intervals_agree_with_sets_of_numbers():
    random, held, numbers = np.random.default_rng(0), Intervals(), set()
    for _ in range(500):
        start, stop = sorted(random.integers(0, 60, 2).tolist())
        if random.random() < 0.5:
            held.add((start, stop))
            numbers |= set(range(start, stop))
        else:
            held.remove((start, stop))
            numbers -= set(range(start, stop))
        low, high = sorted(random.integers(0, 60, 2).tolist())
        assert {n for a, b in held for n in range(a, b)} == numbers and len(held) == len(numbers)
        assert {n for a, b in held.within((low, high)) for n in range(a, b)} == numbers & set(range(low, high))
        assert {n for a, b in held.outside((low, high)) for n in range(a, b)} == set(range(low, high)) - numbers


def order(num_shards=20, seed=0):
    return BlockOrder(lambda: num_shards, lambda shard: [10, 0, 5 + shard % 3], seed)


def blocks_of(found, pass_number):
    return [one for window in range(found.num_windows) for one in found.window(pass_number, window)]


@pytest.mark.parametrize("num_shards", [1, 7, 8, 9, 40])
def test_every_pass_has_every_block_once_in_an_order_of_its_own_that_the_seed_decides(num_shards):
    expected = {(shard, group, size) for shard in range(num_shards) for group, size in ((0, 10), (2, 5 + shard % 3))}
    passes = [blocks_of(order(num_shards), number) for number in range(3)]
    for number, found in enumerate(passes):
        assert {(block.shard, block.group, size) for block, size in found} == expected
        assert len(found) == len(expected) and {block.pass_number for block, _ in found} == {number}
    assert passes[1] == blocks_of(order(num_shards), 1)
    if num_shards > 1:
        places = [[(block.shard, block.group) for block, _ in found] for found in passes]
        assert places[0] != places[1] != places[2]
        assert blocks_of(order(num_shards, seed=1), 0) != passes[0]


def test_a_window_opens_a_few_shards_and_says_where_a_block_has_its_turn():
    found = order()
    for window in range(found.num_windows):
        blocks = [block for block, _ in found.window(2, window)]
        assert len({block.shard for block in blocks}) <= SHARDS_PER_WINDOW
        assert {found.window_of(block) for block in blocks} == {window}
    with pytest.raises(ValueError, match="no shards"):
        BlockOrder(lambda: 0, lambda shard: [], 0).window(0, 0)


def test_the_records_of_a_block_have_another_order_in_each_pass():
    orders = [record_order(Block(number, 3, 0), 50, seed=7) for number in range(3)]
    assert all(sorted(rows) == list(range(50)) for rows in orders)
    assert not np.array_equal(orders[0], orders[1]) and np.array_equal(orders[1], record_order(Block(1, 3, 0), 50, 7))
    assert Span(0, 1, 2, 3, 9).seed != Span(0, 1, 2, 3, 8).seed


def test_the_whole_dataset_is_read_pass_after_pass():
    source, found = WholeDataset(order()), order()
    one, two = blocks_of(found, 0), blocks_of(found, 1)
    spans = [source.next_span() for _ in range(len(one) + len(two))]
    assert spans == [Span(*block, 0, size) for block, size in (*one, *two)]
