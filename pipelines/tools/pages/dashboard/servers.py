"""Who serves the run's model: the table, layers that nobody has, and pictures drawn today. All is the servers' word."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hub_tools.counted import counted, date
from hub_tools.printing.marked_up import escaped
from pipelines.features.publishing.metrics.epoch_summary import bounded_speeds
from pipelines.features.servers.layers import fill_command, missing_layers
from pipelines.tools.pages.dashboard.hub_reading import HubView
from pipelines.tools.pages.dashboard.page_parts import table
from pipelines.tools.pages.dashboard.swarm.swarm_snapshot import AccusedServer, SeenServer
from pipelines.tools.pages.text import short_number

MOST_SERVERS = 100
"""Rows of the table of servers."""

MOST_HOLES = MOST_ACCUSED = 8
LONG_NAME = 32
"""A peer's id rather than a user's name."""

CLAIM = "That is a claim, which nobody has checked here and nothing acts upon."
MOST_REMEMBERED = 4096
SECONDS_OF_A_DAY = 86_400.0


@dataclass(frozen=True, kw_only=True)
class DrawnToday:
    """Pictures that servers say they have drawn since midnight UTC, or since this page began to look."""

    since: float = 0.0
    number: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """What each server last said that it had drawn since its start, by peer id; also of those that have left."""

    def after(self, servers: Sequence[SeenServer], now: float) -> "DrawnToday":
        """Return what is known after one more look; `now` is in seconds since 1970.

        What a server had drawn before it was first seen is not counted, and a new start begins at 0.
        """
        midnight = now - now % SECONDS_OF_A_DAY
        counts, new = dict(self.counts), 0
        for one in servers:
            before = counts.pop(one.peer_id, one.num_drawn)
            new += one.num_drawn - before if one.num_drawn >= before else one.num_drawn
            counts[one.peer_id] = one.num_drawn
        is_same_day = self.since >= midnight
        return dataclasses.replace(
            self,
            since=self.since if is_same_day else midnight if self.since else now,
            number=new + (self.number if is_same_day else 0),
            counts=dict(list(counts.items())[-MOST_REMEMBERED:]),
        )


def holes(servers: Sequence[SeenServer], view: HubView) -> list[range]:
    """Return the layers of the newest checkpoint that nobody serves, if anybody serves layers."""
    spans = [one for one in servers if one.first_layer < one.end_layer]
    if not spans or view.num_layers is None:
        return []
    newest = [one for one in spans if one.revision == view.weights_sha256 and one.state != "draining"]
    return missing_layers((range(one.first_layer, one.end_layer) for one in newest), range(view.num_layers))


def complaints_html(accused: Sequence[AccusedServer], servers: Sequence[SeenServer]) -> str:
    """Return about whom others complain, as what it is: a claim."""
    names = {one.peer_id: one.username for one in servers}
    lines = []
    for one in accused[:MOST_ACCUSED]:
        whom = names.get(one.peer_id) or f"…{one.peer_id[-8:]}"
        who = ", ".join(f"…{name[-8:]}" if len(name) > LONG_NAME else name for name in one.accusers)
        more = f" and {one.num_accusers - len(one.accusers)} more" if one.num_accusers > len(one.accusers) else ""
        lines.append(
            f'<p class="note">{escaped(who + more)} complained about {escaped(whom)} after '
            f"{counted(one.num_audited, 'audited candidate')}. {CLAIM}</p>"
        )
    return "".join(lines)


def servers_html(servers: Sequence[SeenServer], drawn: DrawnToday, view: HubView, repository: str) -> str:
    """Return who serves the run's model as a table; nothing where nobody does."""
    if not servers:
        return ""
    heads = ("user", "state", "epoch", "precision", "codes/s", "pictures drawn", "ranks", "layers", "layers/s")
    rows = [
        [
            escaped(one.username) or f"<i>…{escaped(one.peer_id[-8:])}</i>",
            escaped(one.state),
            f"{one.epoch:,}",
            escaped(one.precision),
            short_number(one.codes_per_second or None),
            f"{one.num_drawn:,}",
            "yes" if one.ranks else "–",
            f"{one.first_layer}:{one.end_layer}" if one.end_layer > one.first_layer else "–",
            short_number(one.layers_per_second or None),
        ]
        for one in servers[:MOST_SERVERS]
    ]
    caption = f"{counted(len(servers), 'server')} of the model, by what they say themselves"
    since = f"{counted(drawn.number, 'picture')} drawn today (since {escaped(date(drawn.since))})"
    speed = f"{short_number(sum(bounded_speeds([one.codes_per_second for one in servers])))} codes a second together"
    lines = [f"<p>{since}; {speed}.</p>"]
    for hole in holes(servers, view)[:MOST_HOLES]:
        command = escaped(fill_command(repository, hole))
        lines.append(
            f'<p class="note">Nobody serves layers {hole.start}:{hole.stop} of the newest checkpoint. To serve them: '
            f"<code>{command}</code></p>"
        )
    return f'<div class="board">{"".join(lines)}{table(heads, rows, caption=caption)}</div>'
