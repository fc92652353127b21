"""A download from donors of every kind, without a network: what is taken, what is refused, and who is named."""

import asyncio
import time
from dataclasses import replace

import pytest
import torch
from made_up_states import made_up_state, sealed

from pipelines.core.state.digest import make_manifest
from pipelines.core.state.download import (
    DownloadLimits,
    StateDownload,
    StateDownloadError,
    StateRefusedError,
    manifest_request,
    read_request,
    tensors_request,
)
from pipelines.core.state.snapshot import StateSnapshot

LIMITS = DownloadLimits(chunk_seconds=0.2, job_seconds=5.0, job_bytes=4096, num_donors_at_once=2)


class Donor:
    """Hands a snapshot out in small chunks; `spoil` decides what becomes of the chunk of a tensor."""

    def __init__(self, snapshot, spoil=None):
        self.snapshot, self.spoil = snapshot, spoil
        self.num_tensors_sent = 0
        self.wants = []

    async def answer(self, request):
        want, digest, indices = read_request(request, len(self.snapshot.layout))
        self.wants.append(want)
        manifest = self.snapshot.manifest()
        if manifest is None or manifest.digest != digest:
            return
        if want == "manifest":
            yield manifest.encode()
        for index in indices:
            memory = bytes(self.snapshot.memory(self.snapshot.layout[index]))
            for start in range(0, len(memory), 1000):
                chunk = memory[start : start + 1000]
                if self.spoil is not None:
                    chunk = await self.spoil(self, chunk)
                yield chunk
                await asyncio.sleep(0)
            self.num_tensors_sent += 1


async def stall(donor, chunk):
    if donor.num_tensors_sent >= 2:
        await asyncio.sleep(60)
    return chunk


async def vanish(donor, chunk):
    if donor.num_tensors_sent >= 2:
        raise ConnectionResetError("stream reset")
    return chunk


async def lie(donor, chunk):
    return bytes([chunk[0] ^ 1]) + chunk[1:]


async def send_too_much(donor, chunk):
    return chunk + chunk


def fetch(donors, *, target=None, digest=None, epoch=3, limits=LIMITS):
    """Download into a fresh snapshot; return it, the manifest and the download."""
    target = target or StateSnapshot(made_up_state(seed=1), "birds")
    target.begin()
    digest = digest or next(iter(donors.values())).snapshot.manifest().digest
    download = StateDownload(
        target, list(donors), lambda name, request: donors[name].answer(request), limits,
        digest=digest, epoch=epoch,
    )  # fmt: skip
    manifest = asyncio.run(download.run())
    return target, manifest, download.report()


def honest():
    return Donor(sealed(made_up_state())[0])


def is_whole(target):
    return all(torch.equal(target.tensors[name], tensor) for name, tensor in made_up_state().items())


def test_a_state_comes_from_several_donors_bit_by_bit():
    donors = {"one": honest(), "two": honest(), "three": honest()}
    target, manifest, report = fetch(donors, limits=replace(LIMITS, num_donors_at_once=3))
    assert is_whole(target)
    assert report.tensors_by_donor.keys() == {"one", "two", "three"}
    assert sum(report.tensors_by_donor.values()) == len(target.layout)
    assert report.num_bytes == target.num_bytes + len(manifest.encode())
    assert (report.failures, report.liars) == ({}, ())


@pytest.mark.parametrize(
    ("spoil", "reason", "is_liar"),
    [
        (stall, "It sent nothing for", False),
        (vanish, "stream reset", False),
        (lie, "It delivered bytes for parameter", True),
        (send_too_much, "It delivered", True),
    ],
)
def test_a_donor_that_fails_is_given_up_and_costs_what_it_had_not_delivered_whole(spoil, reason, is_liar):
    donors = {"good": honest(), "bad": Donor(sealed(made_up_state())[0], spoil)}
    started = time.monotonic()
    target, manifest, report = fetch(donors)
    assert time.monotonic() - started < 5
    assert is_whole(target)
    assert reason in report.failures["bad"]
    assert report.liars == (("bad",) if is_liar else ())
    assert report.num_bytes < target.num_bytes * 2 + len(manifest.encode())
    assert "good" not in report.failures


def test_what_has_arrived_is_kept_for_the_next_attempt():
    target = StateSnapshot(made_up_state(seed=1), "birds")
    donors = {"bad": Donor(sealed(made_up_state())[0], vanish)}
    with pytest.raises(StateDownloadError, match=r"No donor of the state of epoch 3 is left \(bad: stream") as caught:
        fetch(donors, target=target)
    arrived = sum(caught.value.report.tensors_by_donor.values())
    assert arrived >= 1
    _, _, report = fetch({"good": honest()}, target=target)
    assert is_whole(target)
    assert sum(report.tensors_by_donor.values()) == len(target.layout) - arrived


def test_a_donor_that_has_moved_on_is_no_liar():
    donors = {"later": Donor(sealed(made_up_state(), epoch=4)[0]), "good": honest()}
    target, _, report = fetch(donors, digest=donors["good"].snapshot.manifest().digest)
    assert is_whole(target)
    assert report.moved_on == ("later",)
    assert report.liars == ()


def test_a_donor_whose_manifest_never_ends_is_named_before_it_fills_the_memory():
    class Flooder(Donor):
        async def answer(self, request):
            while True:
                self.num_tensors_sent += 1
                yield bytes(10_000)

    donors = {"flooder": Flooder(sealed(made_up_state())[0]), "good": honest()}
    target, _, report = fetch(donors, digest=donors["good"].snapshot.manifest().digest)
    assert is_whole(target) and report.liars == ("flooder",)
    assert 10_000 * donors["flooder"].num_tensors_sent < 200_000


def test_a_donor_whose_manifest_has_another_digest_is_named():
    class Forger(Donor):
        async def answer(self, request):
            yield sealed(made_up_state(seed=7))[1].encode()

    donors = {"forger": Forger(None), "good": honest()}
    target, _, report = fetch(donors, digest=donors["good"].snapshot.manifest().digest)
    assert is_whole(target)
    assert report.liars == ("forger",)


def test_a_state_that_is_not_finite_is_refused_whoever_names_it():
    state = made_up_state()
    snapshot = StateSnapshot(state, "birds")
    snapshot.begin()
    state["parameter.0"][3, 5] = float("nan")
    snapshot.fill(state)
    snapshot.complete(make_manifest("birds", 3, snapshot.layout, map(snapshot.hash, snapshot.layout)))
    with pytest.raises(StateRefusedError, match=r"parameter.0 of the state of epoch 3 is not finite"):
        fetch({"mad": Donor(snapshot)})


def test_a_state_of_another_model_is_refused_before_its_tensors_are_asked_for():
    donor = Donor(sealed(made_up_state(bits=32))[0])
    with pytest.raises(StateRefusedError, match="does not fit this peer's: It has 8 tensors; expected 10"):
        fetch({"other": donor})
    assert donor.num_tensors_sent == 0


def test_strangers_who_say_that_they_serve_are_not_asked_while_others_deliver():
    strangers = {f"stranger{number}": honest() for number in range(30)}
    target, _, report = fetch({"good": honest(), "other": honest(), **strangers})
    assert is_whole(target) and report.tensors_by_donor.keys() == {"good", "other"}
    assert not any(donor.wants for donor in strangers.values())


def test_a_trickle_holds_nobody_up():
    async def trickle(donor, chunk):
        await asyncio.sleep(0.1)
        return chunk

    limits = DownloadLimits(chunk_seconds=1.0, job_seconds=0.5, job_bytes=2**20)
    started = time.monotonic()
    with pytest.raises(StateDownloadError, match="or too little"):
        fetch({"slow": Donor(sealed(made_up_state())[0], trickle)}, limits=limits)
    assert time.monotonic() - started < 5


def test_hashes_that_trickle_cost_no_more_than_silence():
    good, limits = honest(), DownloadLimits(chunk_seconds=0.5, job_seconds=3600.0)
    target = StateSnapshot(made_up_state(seed=1), "birds")

    async def open_stream(name, request):
        while name != "good":
            await asyncio.sleep(0.1)
            yield b" "
        async for chunk in good.answer(request):
            yield chunk

    download = StateDownload(
        target, ["slow", "slower", "good"], open_stream, limits,
        digest=good.snapshot.manifest().digest, epoch=3,
    )  # fmt: skip
    asyncio.run(asyncio.wait_for(download.run(), 60))
    assert is_whole(target) and download.report().failures.keys() == {"slow", "slower"}


def test_requests_of_others_are_checked():
    assert read_request(manifest_request("d"), 3) == ("manifest", "d", [])
    assert read_request(tensors_request("d", [0, 2]), 3) == ("tensors", "d", [0, 2])
    wrong = [{}, dict(want="all", digest="d"), dict(want=["manifest"]), dict(want="tensors", digest="d", indices="01")]
    wrong += [tensors_request("d", indices) for indices in ([3], [-1], [0] * 4, [True], ["0"])]
    for request in wrong:
        with pytest.raises(ValueError, match=r"not a request for a state|tensors that do not exist"):
            read_request(request, 3)
