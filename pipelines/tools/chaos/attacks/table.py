"""What a hostile participant can do to a run, by name. An attack is a function with `@attack` or `@repeated`.

Each is a generator: it begins when it is first asked, and does it again each time it is asked, some twice a second.
It does not know the run's users: in a run with an authority its node is that of one admitted member.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.tools.chaos.attacks.hostile_averagers import Participant
    from pipelines.tools.chaos.attacks.hostile_node import HostileNode

Attack = Callable[["HostileNode"], Iterator[None]]

FAR_EPOCH = 10**6
MANY_SAMPLES = 10**9
FLOOD_BYTES = 100_000
SECONDS_OF_A_SQUATTER = 10 * 365 * 86_400.0
BUSY_SHARE = 0.5
MOST_SPANS = 64
LEASE_KEYS = 8

ATTACKS: dict[str, Attack] = {}


def attack(begin: Attack) -> Attack:
    """Enter an attack into the table."""
    ATTACKS[begin.__name__] = begin
    return begin


def repeated(lie: "Callable[[HostileNode], None]") -> Attack:
    """Enter what does the same each time that it is asked."""

    @wraps(lie)
    def begin(node: "HostileNode") -> Iterator[None]:
        while True:
            lie(node)
            yield

    return attack(begin)


def _in_rounds(node: "HostileNode", kind: "type[Participant]") -> Iterator[None]:
    """Try to take part in each round in a way of its own."""
    from pipelines.tools.chaos.attacks.hostile_averagers import hostile_averager

    averager = hostile_averager(node, kind)
    while True:
        averager.try_round(node.epoch_of_others())
        yield


@repeated
def lying_epoch(node: "HostileNode") -> None:
    """Progress of an epoch far ahead."""
    node.claim(progress=dict(epoch=FAR_EPOCH), state=dict(epoch=FAR_EPOCH))


@repeated
def lying_samples(node: "HostileNode") -> None:
    """Samples that do not exist."""
    node.claim(progress=dict(samples_accumulated=MANY_SAMPLES, samples_per_second=1e9))


@attack
def samples_of_new_keys(node: "HostileNode") -> Iterator[None]:
    """Samples that do not exist, under another key in each epoch."""
    epoch = -1
    while True:
        if epoch != (epoch := node.epoch_of_others()):
            node.take_new_identity()
        node.claim(progress=dict(samples_accumulated=MANY_SAMPLES, samples_per_second=1e9))
        yield


@attack
def false_votes(node: "HostileNode") -> Iterator[None]:
    """Votes for a state of zeros, which it serves."""
    from pipelines.core.state.exchange import StateExchange
    from pipelines.tools.chaos.attacks.hostile_averagers import zeroed_state

    state = zeroed_state(node, StateExchange).state
    while True:
        if state.state_epoch != (epoch := node.epoch_of_others()):
            state.set_epoch(epoch)
            state.take_snapshot()
        node.claim(state=dict(epoch=epoch, digest=state.snapshot.manifest().digest))
        yield


@attack
def endless_manifest(node: "HostileNode") -> Iterator[None]:
    """A donor of the state that most have, whose list of hashes never ends."""
    from pipelines.core.state.exchange import StateExchange
    from pipelines.tools.chaos.attacks.hostile_averagers import EndlessDonor, zeroed_state

    zeroed_state(node, StateExchange, EndlessDonor)
    while True:
        if (most := node.state_of_most()) is not None:
            node.claim(state=dict(epoch=most[0], digest=most[1]))
        yield


@repeated
def record_flood(node: "HostileNode") -> None:
    """Large records under all of the run's keys."""
    for name in ("progress", "metrics", "introductions", "states", "auxiliary", "admissions"):
        node.flood(name, FLOOD_BYTES)


@repeated
def squatted_group_key(node: "HostileNode") -> None:
    """A plain value for years where peers declare that they look for a group."""
    node.store("grad_averager.0b", b"mine", seconds=SECONDS_OF_A_SQUATTER)


@repeated
def crowded_searches(node: "HostileNode") -> None:
    """Thousands of peers that do not exist look for groups: without a signature, and a few by each of its keys."""
    node.crowd()


@repeated
def many_names(node: "HostileNode") -> None:
    """One key as thousands of owners: its text in OpenSSH's format, with comments."""
    node.write_in_many_names()


@repeated
def dear_keys(node: "HostileNode") -> None:
    """Tokens by keys whose exponents make each check dear, of owners that claim to train."""
    node.claim()
    node.send_dear_tokens()


@repeated
def hidden_records(node: "HostileNode") -> None:
    """A node of the DHT that answers with its own records alone, for ever, and fills the caches of others with them."""
    node.hide_others()


@attack
def false_metrics(node: "HostileNode") -> Iterator[None]:
    """Figures that no JSON, Parquet or float holds."""
    figures = dict(loss=float("inf"), round_seconds=float("inf"), bytes_sent=2**63, samples_per_second=float("nan"))
    while True:
        node.claim()
        node.tell("metrics", node.figures() | figures)
        yield


@repeated
def silent_streams(node: "HostileNode") -> None:
    """Streams by the thousand on which nothing is ever said."""
    node.open_silent_streams()


@attack
def held_copies(node: "HostileNode") -> Iterator[None]:
    """A reader of the state that most have, who asks every donor for it again and again, so that it stays."""
    from pipelines.tools.chaos.attacks.hostile_averagers import HoldingReader, zeroed_state

    reader = zeroed_state(node, HoldingReader)
    while True:
        if (most := node.state_of_most()) is not None:
            reader.hold(most[1], node.donors_of(most[1]))
        yield


@attack
def stalling_leader(node: "HostileNode") -> Iterator[None]:
    """A leader of groups that accepts everybody and never begins."""
    from pipelines.tools.chaos.attacks.hostile_averagers import StallingLeader, hostile_averager

    hostile_averager(node, StallingLeader).lead()
    while True:
        yield


@attack
def bad_mode(node: "HostileNode") -> Iterator[None]:
    """A member that tells its group a mode that does not exist."""
    from pipelines.tools.chaos.attacks.hostile_averagers import BadMember

    return _in_rounds(node, BadMember)


@attack
def zeroing_reducer(node: "HostileNode") -> Iterator[None]:
    """A reducer that answers zeros for its share of the gradient."""
    from pipelines.tools.chaos.attacks.hostile_averagers import ZeroingReducer

    return _in_rounds(node, ZeroingReducer)


@attack
def framing_member(node: "HostileNode") -> Iterator[None]:
    """A member of groups that accuses an honest reducer after each round."""
    from pipelines.tools.chaos.attacks.hostile_averagers import FramingMember

    return _in_rounds(node, FramingMember)


@repeated
def hoarded_leases(node: "HostileNode") -> None:
    """Leases of records that it never trains on."""
    node.claim()
    node.tell("trained", dict(epochs=[]))


@repeated
def crowded_leases(node: "HostileNode") -> None:
    """Names without end that ask for leases, and leases in an anchor's place that no anchor has signed."""
    node.take_new_identity()
    node.claim()
    node.tell("trained", dict(epochs=[]))
    leases = [dict(name=f"{number:016x}", booked_epoch=0, spans=[]) for number in range(64)]
    for number in range(LEASE_KEYS):
        node.tell(f"leases_{number}", dict(publisher_key="", time=0.0, leases=leases, signature=""))


@repeated
def false_bookings(node: "HostileNode") -> None:
    """Reports of having trained on what others have on their leases, on what nobody has, and on what there is not."""
    epoch, reported = node.epoch_of_others(), node.spans_of_others()
    first = [[0, shard, group, 0, 2**20] for shard in range(4) for group in range(4)]
    strange = [[0, 2**31, 0, 0, 2**31], [2**31, 0, 0, 0, 1], [0, 0, 2**31, 5, 9]]
    spans = [*reported[:MOST_SPANS], *first, *strange]
    node.claim()
    node.tell("trained", dict(epochs=[dict(epoch=number, spans=spans) for number in (epoch, epoch + 1)]))
    gradient = dict(epoch=epoch, model_epoch=epoch, spans=spans[:8], num_batches=4096, sketch=[1e30] * 8)
    node.tell("gradients", dict(gradients=[gradient] * 24))


@repeated
def bystander(node: "HostileNode") -> None:
    """Nothing but load, for comparison: half a core."""
    node.compute(BUSY_SHARE)
