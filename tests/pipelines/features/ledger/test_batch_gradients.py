import dataclasses

import numpy as np
import pytest
import torch

from pipelines.core.run.spans import Span
from pipelines.features.ledger.batch_gradients import BatchGradient, join_batches, newest_signed
from pipelines.features.ledger.gradient_files import (
    GRADIENTS_FILE,
    MOST_KEPT,
    SignedGradient,
    newest,
    read_gradients,
    write_gradients,
)
from pipelines.features.ledger.gradient_sketch import NUM_SUMS, GradientSketcher, sketch_difference
from pipelines.features.ledger.ledger_files import Booking
from pipelines.features.ledger.recomputation import signed_share


def batch(*spans, counts=(2, 2), sketch=(1.0,) * NUM_SUMS, model_epoch=3):
    return BatchGradient(model_epoch=model_epoch, spans=spans, counts=counts, sketch=sketch)


FIRST = batch(Span(0, 1, 0, 0, 2), Span(0, 2, 0, 4, 6))
SECOND = batch(Span(0, 1, 0, 2, 4), Span(0, 2, 0, 6, 8))


def test_batches_that_follow_each_other_have_one_name_together():
    both = dataclasses.replace(
        FIRST, spans=(Span(0, 1, 0, 0, 4), Span(0, 2, 0, 4, 8)), num_batches=2, sketch=(2.0,) * NUM_SUMS
    )
    assert join_batches([FIRST, SECOND]) == [both]


@pytest.mark.parametrize(
    "changes",
    [
        dict(spans=(Span(0, 1, 0, 2, 4), Span(0, 3, 0, 6, 8))),
        dict(spans=(Span(0, 1, 0, 3, 5), Span(0, 2, 0, 6, 8))),
        dict(spans=SECOND.spans[:1], counts=(2,)),
        dict(counts=(1, 3)),
        dict(counts=(0, 4)),
        dict(model_epoch=4),
        dict(sketch=None),
        dict(num_batches=64),
    ],
)
def test_other_batches_keep_their_own_names(changes):
    other = dataclasses.replace(SECOND, **changes)
    assert join_batches([FIRST, other]) == [FIRST, other]


def test_what_is_signed_is_of_the_newest_epochs_and_fits_a_record():
    averaged = {epoch: [batch(Span(epoch, number, 0, 0, 4), counts=(4,)) for number in range(5)] for epoch in range(10)}
    signed = newest_signed(averaged, most_names=12, most_spans=100)
    assert {epoch: len(batches) for epoch, batches in signed.items()} == {7: 2, 8: 5, 9: 5}
    assert sum(map(len, newest_signed(averaged, most_names=100, most_spans=7).values())) == 7
    assert newest_signed({1: [dataclasses.replace(FIRST, sketch=None)]}, 10, 10) == {}


@pytest.fixture
def gradients():
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw) for shape in [(300, 40), (4096,), (7,), (2, 4096)]]


def test_a_sketch_is_linear_and_tells_how_large_a_difference_is(gradients):
    sketcher = GradientSketcher("a run")
    sketch = sketcher.sketch(gradients)
    assert sketcher.sketch(gradients) == sketch == GradientSketcher("a run").sketch(gradients)
    assert GradientSketcher("another run").sketch(gradients) != sketch
    assert sketcher.sketch(gradients, 3.0) == pytest.approx(np.multiply(3.0, sketch).tolist())
    halves = [gradient * 0.5 for gradient in gradients]
    assert np.add(sketcher.sketch(halves), sketcher.sketch(halves)) == pytest.approx(sketch, rel=1e-5)
    draw = torch.Generator().manual_seed(1)
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    found = []
    for share in (1e-3, 1e-1, 1.0):
        noise = [torch.randn(gradient.shape, generator=draw) for gradient in gradients]
        size = torch.cat([part.flatten() for part in noise]).norm()
        others = [part + share * norm / size * more for part, more in zip(gradients, noise, strict=True)]
        found.append(sketch_difference(sketcher.sketch(others), sketch) / share)
    assert all(0.3 < ratio < 3 for ratio in found)


def test_each_value_and_the_place_of_each_tensor_matters(gradients):
    sketcher = GradientSketcher(0)
    sketch = sketcher.sketch(gradients)
    for number, place in [(0, (299, 39)), (1, (0,)), (2, (6,)), (3, (1, 4095))]:
        changed = [gradient.clone() for gradient in gradients]
        changed[number][place] += 100.0
        assert sketch_difference(sketcher.sketch(changed), sketch) > 0.1
    assert sketcher.sketch([None, *gradients[1:]]) != sketch
    swapped = [gradients[0], gradients[3][0], gradients[2], torch.stack([gradients[1], gradients[3][1]])]
    assert sketch_difference(sketcher.sketch(swapped), sketch) > 0.1


def signed(epoch=2, name="a" * 16, spans=(Span(0, 1, 2, 0, 8),)):
    sketch = tuple(0.1 * number for number in range(NUM_SUMS))
    return SignedGradient(epoch, name, spans, 2, epoch - 1, sketch, "somebody")


def test_what_is_written_is_read_again_exactly(tmp_path):
    rows = newest([signed(3), signed(), signed(), signed(spans=(Span(0, 1, 2, 0, 8), Span(0, 9, 2, 8, 16)))])
    write_gradients(tmp_path, rows)
    assert read_gradients(tmp_path) == rows and len(rows) == 3
    assert read_gradients(tmp_path / "nothing") == []
    assert len(newest(signed(epoch) for epoch in range(MOST_KEPT + 5))) == MOST_KEPT


@pytest.mark.parametrize("damage", ["bytes", "batches", "values", "records"])
def test_a_damaged_file_is_named(tmp_path, damage):
    rows = dict(
        batches=signed()._replace(num_batches=0),
        values=signed()._replace(sketch=(float("nan"),) * NUM_SUMS),
        records=signed()._replace(spans=()),
    )
    if damage == "bytes":
        (tmp_path / GRADIENTS_FILE).write_bytes(b"PAR1 and nothing else")
    else:
        write_gradients(tmp_path, [rows[damage]])
    with pytest.raises(ValueError, match=r"gradients\.parquet is not one of this version"):
        read_gradients(tmp_path)


def test_the_share_of_signed_records_is_of_epochs_with_signatures():
    name = "a" * 16
    bookings = [
        Booking(2, Span(0, 1, 2, 0, 8), name, "somebody"),
        Booking(2, Span(0, 1, 3, 0, 8), name, "somebody"),
        Booking(1, Span(0, 1, 4, 0, 8), name, "somebody"),
        Booking(2, Span(0, 1, 2, 8, 16), "b" * 16, "another"),
    ]
    assert signed_share(bookings, [signed()]) == pytest.approx(8 / 24)
    assert signed_share(bookings, []) == 0.0
