"""The parts of the page as HTML, from plain values. All text is escaped: names and versions come from strangers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hub_tools.counted import counted, date, duration, nats
from hub_tools.endpoint import current_endpoint
from hub_tools.printing.marked_up import escaped
from pipelines.features.ledger.coverage import NewestPass
from pipelines.features.publishing.metrics.credit.contributions import CLAIMED
from pipelines.features.publishing.metrics.evaluation.held_out_losses import is_few, perplexity
from pipelines.features.publishing.metrics.run_state import RunCondition, RunPhase
from pipelines.features.publishing.repository.epoch_tags import epoch_tag
from pipelines.tools.pages.dashboard.alerts import Alert
from pipelines.tools.pages.dashboard.hub_reading import HubView
from pipelines.tools.pages.dashboard.peer_table import COLUMNS, PeerPage, PeerState, TrackedPeer
from pipelines.tools.pages.dashboard.settings import DashboardSettings
from pipelines.tools.pages.table_order import Columns, in_order
from pipelines.tools.pages.text import short_number

MOST_NATS = 50.0
"""A loss from the Hub may be any number."""

MAX_CHECKPOINTS = 50
MAX_PICTURES = 24
MAX_IN_TIME_LINE = 8
MAX_BOARD_ROWS = 100
MAX_NAMES = 8
BOARD_COLUMNS: Columns = {name: lambda row, name=name: row[name] for name in ("samples", "hours", "candidates")}
BOARD_COLUMNS = dict(user=lambda row: row["username"].casefold(), **BOARD_COLUMNS)
"""What the leaderboard can be sorted by."""

OPEN_RUN = "This run is open to everybody: peers choose their own names."


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The run in a few figures; None for unknown ones."""

    epoch: int
    num_epochs: int | None
    loss: float | None
    evaluation_loss: float | None
    samples_per_second: float | None
    num_peers: int | None
    epoch_seconds: float | None
    condition: RunCondition
    unit: str = "samples"
    """What the run counts; see `TrainingRun.unit`."""

    evaluation_epoch: float | None = None
    num_held_out: float | None = None
    """Records on which the evaluation stands."""

    evaluation_low: float | None = None
    evaluation_high: float | None = None
    """The interval of 95 % of the evaluation's loss."""

    newest_pass: NewestPass | None = None
    """How far the data was read."""

    @property
    def data(self) -> tuple[str, str, str]:
        """The pass over the data, and how much of it was trained on."""
        newest = self.newest_pass
        if newest is None:
            return "data", "–", ""
        share = "–" if newest.share is None else f"{100 * newest.share:.0f} %"
        return f"read in pass {newest.pass_number + 1} over the data", share, ""

    @property
    def evaluation(self) -> tuple[str, str, str]:
        """The newest evaluation: its name, with a warning if it stands on few records, its figure and interval."""
        few = f" (only {self.num_held_out:.0f} records)" if is_few(self.num_held_out) else ""
        losses = (self.evaluation_loss, self.evaluation_low, self.evaluation_high)
        is_in_tokens = self.unit == "tokens" and self.evaluation_loss is not None
        values = losses
        if is_in_tokens:
            values = tuple(loss if loss is None else perplexity(min(loss, MOST_NATS)) for loss in losses)
        write = short_number if is_in_tokens else nats
        interval = "" if None in values else f"{write(values[1])} to {write(values[2])}"
        when = "" if self.evaluation_epoch is None else f" of epoch {self.evaluation_epoch:,.0f}"
        return f"held-out {'perplexity' if is_in_tokens else 'loss (nats)'}{when}{few}", write(values[0]), interval


def headline_html(settings: DashboardSettings, head: Headline) -> str:
    """Return the run's name, its progress, and its newest figures."""
    share = min(1.0, head.epoch / head.num_epochs) if head.num_epochs else 0.0
    condition, is_now = head.condition, head.condition.state in (RunPhase.ALIVE, RunPhase.STALLED)
    whole = f" of {head.num_epochs:,}" if head.num_epochs else ""
    figures = [
        (f"epoch{whole}", f"{head.epoch:,}", ""),
        ("training loss (nats)", nats(head.loss), ""),
        head.evaluation,
        *([head.data] if head.newest_pass is not None else []),
        ("peers", short_number(head.num_peers), ""),
        (f"{head.unit} per second{'' if is_now else ' in the last epoch'}", short_number(head.samples_per_second), ""),
        *([] if condition.seconds_left is None else [("time left", duration(condition.seconds_left), "")]),
    ]
    tiles = "".join(
        f"<div><dt>{name}</dt><dd>{escaped(value)}{_small(more)}</dd></div>" for name, value, more in figures
    )
    on_hub = link(f"{current_endpoint()}/{settings.run}", "The run on the Hub")
    return (
        f'<div class="board"><h1>{escaped(settings.run)}</h1>'
        f'<div class="progress" role="progressbar" aria-label="epochs" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{100 * share:.1f}"><span style="width:{100 * share:.2f}%"></span></div>'
        f'<p role="status">{escaped(condition.sentence)} '
        f"{_next_step(settings, condition)}</p>"
        f'<dl class="tiles">{tiles}</dl><p>{on_hub}</p></div>'
    )


def _next_step(settings: DashboardSettings, condition: RunCondition) -> str:
    """Return what a person does next: a link where there is a page for it, else a command."""
    places = {RunPhase.OVER: settings.demo_space, RunPhase.STALLED: "", RunPhase.UNREACHABLE: ""}
    place = places.get(condition.state, settings.join_space)
    return (
        link(place, condition.advice)
        if place
        else f"{escaped(condition.advice)}: <code>{escaped(condition.command)}</code>"
    )


def now_html(names: Sequence[str], began: float, view: HubView, *, is_live: bool) -> str:
    """Return what a visitor asks first: who trains now, since when it goes on, and what the model draws by now.

    `names` are those of the peers that train, the fastest first; `began` is when the first epoch ended, in seconds
    since 1970, or 0.
    """
    different = list(dict.fromkeys(names))
    shown, more = different[:MAX_NAMES], len(different) - MAX_NAMES
    who = f"{', '.join(shown)}{f' and {more} more' if more > 0 else ''}" if shown else "Nobody"
    verb = "train" if len(different) > 1 else "trains"
    lines = [f"<b>{escaped(who)}</b> {verb} now."] if is_live else []
    if began > 0:
        lines.append(f"The first epoch ended on {escaped(date(began))}.")
    epochs = sorted(view.pictures)
    # The first, the newest, and some between them.
    places = range(min(MAX_IN_TIME_LINE, len(epochs)))
    chosen = [epochs[round(place * (len(epochs) - 1) / max(1, len(places) - 1))] for place in places[:-1]]
    line = "".join(_reel_picture(view, epoch) for epoch in [*chosen, *epochs[-1:]])
    pictures = f'<ul class="reel newest" tabindex="0" aria-label="What the model drew">{line}</ul>' if epochs else ""
    return f'<div class="board"><p>{" ".join(lines)}</p>{pictures}</div>'


def _small(text: str) -> str:
    return f'<small title="interval of 95 %">{escaped(text)}</small>' if text else ""


def link(address: str, text: str) -> str:
    """Return a link that opens in a new tab: a Space is shown inside a frame."""
    return f'<a href="{escaped(address)}" target="_blank" rel="noopener noreferrer">{escaped(text)}</a>'


def notices_html(problems: Sequence[tuple[str, str]], alerts: Sequence[Alert], state: RunPhase) -> str:
    """Return what is wrong: sources that do not answer, by name, and alerts. All is well only where somebody is."""
    items = [f'<li class="away"><b>{escaped(source)}</b> {escaped(text)}</li>' for source, text in problems]
    items += [
        f'<li class="{kind}"><b>{escaped(alert.kind)}</b> {escaped(alert.text)}</li>'
        for alert in alerts
        for kind in ["serious" if alert.is_serious else "mild"]
    ]
    if not items and state is RunPhase.ALIVE:
        items = ['<li class="fine"><b>all well</b> Hub and swarm answer, and nothing looks wrong.</li>']
    if not items:
        return ""
    return f'<div class="board"><ul class="notices" aria-label="Notices">{"".join(items)}</ul></div>'


def comparison_html(text: str) -> str:
    """Return why another run is not shown beside this one."""
    return f'<div class="board"><p class="note" role="status">{escaped(text)}</p></div>'


def peers_html(page: PeerPage, now: float, state: RunPhase, unit: str = "samples") -> str:
    """Return one page of the peers as a table."""
    if not page.num_peers:
        words = "The run is over: nobody trains it any more." if state is RunPhase.OVER else "Nobody trains now."
        return f'<div class="board"><p class="empty">{words}</p></div>'
    found = (
        f"{page.num_found:,} of {counted(page.num_peers, 'peer')}"
        if page.num_found < page.num_peers
        else counted(page.num_found, "peer")
    )
    last = page.first_row + len(page.rows) - 1
    place = f"rows {page.first_row:,}–{last:,} of {found}, page {page.page} of {page.num_pages}"
    heads = ("user", "state", f"{unit}/s", "epoch", unit, "last seen", "device", "mode", "version")
    rows = [_peer_row(one, now) for one in page.rows]
    caption = place if page.rows else f"none of {found} matches"
    return f'<div class="board">{table(heads, rows, caption=caption, sorts=tuple(COLUMNS), order=page.order)}</div>'


def _peer_row(one: TrackedPeer, now: float) -> list[str]:
    peer = one.peer
    state = f'<span class="state {one.state.name.lower()}">{one.state}</span>'
    speed = None if one.state is PeerState.GONE else peer.samples_per_second
    return [
        escaped(peer.username) or f'<i title="not reported yet">…{escaped(peer.peer_id[-8:])}</i>',
        state,
        short_number(speed),
        "–" if peer.epoch is None else f"{peer.epoch:,}",
        short_number(peer.figures.num_samples if peer.figures else None),
        f"{duration(round(max(0.0, now - one.last_seen)))} ago",
        escaped(peer.device) or "–",
        "client" if peer.client_mode else "full",
        escaped(peer.package_version) or "–",
    ]


def board_html(
    rows: Sequence[Mapping[str, Any]], span: str, *, total: int, is_open: bool, unit: str = "samples", order: str = ""
) -> str:
    """Return the users by their contribution in a span; `rows` come from `programs.board_rows`."""
    if not rows:
        return '<div class="board"><p class="empty">Nobody has contributed in this period yet.</p></div>'
    has_served = any(row.get("candidates") for row in rows)
    ranked = {name: lambda numbered, value=value: value(numbered[1]) for name, value in BOARD_COLUMNS.items()}
    shown = [
        [
            f"{number}",
            escaped(row["username"]),
            f"{row['samples']:,}",
            duration(3600 * row["hours"]) if row["hours"] > 0 else "–",
            *([f"{row['candidates']:,}"] if has_served else []),
        ]
        for number, row in in_order(list(enumerate(rows, 1)), order, ranked)[:MAX_BOARD_ROWS]
    ]
    more = f", the first {len(shown)} shown" if len(rows) > len(shown) else ""
    heads = ("#", "user", f"{unit} claimed", "time", *(["pictures served, as audited"] if has_served else []))
    caption = f"{counted(len(rows), 'user')}, {counted(total, unit.removesuffix('s'))} ({span}){more}"
    note = f'<p class="note">{CLAIMED}{f" {OPEN_RUN}" if is_open else ""}</p>'
    sorts = ("", *BOARD_COLUMNS)[: len(heads)]
    return f'<div class="board">{table(heads, shown, caption=caption, sorts=sorts, order=order)}{note}</div>'


def checkpoints_html(settings: DashboardSettings, view: HubView) -> str:
    """Return the newest checkpoints, with how to load and draw with each."""
    if not view.checkpoints:
        return '<div class="board"><p class="empty">No checkpoint has been published yet.</p></div>'
    losses = {row["epoch"]: row["loss"] for row in view.evaluations}
    links = bool(settings.demo_space)
    rows = [
        [
            link(f"{current_endpoint()}/{settings.run}/tree/{epoch_tag(epoch)}", f"{epoch:,}"),
            nats(losses.get(epoch)),
            f"<code>{escaped(commit[:10])}</code>",
            f"<code>--revision {escaped(epoch_tag(epoch))}</code>",
            *([link(f"{settings.demo_space}?checkpoint={epoch_tag(epoch)}", "Generate with this")] if links else []),
        ]
        for epoch, commit in sorted(view.checkpoints.items(), reverse=True)[:MAX_CHECKPOINTS]
    ]
    newest = epoch_tag(max(view.checkpoints))
    if view.run is not None and view.unit == "tokens":
        command = f'pipeline("{view.run.task}", model="{settings.run}", revision="{newest}")'
    else:
        command = f"dalle-collab generate {settings.run} 'a caption' --revision {newest}"
    caption = counted(len(view.checkpoints), "checkpoint") + (
        f", the newest {len(rows)}" if len(rows) < len(view.checkpoints) else ""
    )
    columns = ("epoch", "held-out loss (nats)", "commit", "to load it", *(["to draw with it"] if links else []))
    shown = table(columns, rows, caption=caption)
    return f'<div class="board"><p>On your own machine: <code>{escaped(command)}</code></p>{shown}</div>'


def reel_html(view: HubView) -> str:
    """Return the pictures of the progress reel, newest first, thinned to `MAX_PICTURES`."""
    if not view.pictures:
        return '<div class="board"><p class="empty">No pictures of the progress reel have been published yet.</p></div>'
    epochs = sorted(view.pictures, reverse=True)
    step = -(-len(epochs) // MAX_PICTURES)
    prompts = ", ".join(view.prompts)
    pictures = "".join(_reel_picture(view, epoch) for epoch in epochs[::step])
    captions = f"<p>From top to bottom: {escaped(prompts)}.</p>" if prompts else ""
    return f'<div class="board">{captions}<ul class="reel">{pictures}</ul></div>'


def _reel_picture(view: HubView, epoch: int) -> str:
    file, drawn = view.pictures[epoch]
    shown = f"epoch {epoch:,}" + (f" · {date(drawn)}" if drawn > 0 else "")
    alt = escaped(f"epoch {epoch:,}: {', '.join(view.prompts)}")
    return f'<li><img src="reel/{quote(file)}" loading="lazy" alt="{alt}"><span>{shown}</span></li>'


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, sorts: Sequence[str] = (), order: str = ""
) -> str:
    """Return a table of cells that are HTML already; `sorts` names the order that each head asks for, empty: none."""
    sorts = sorts or [""] * len(heads)
    head = "".join(_head(name, sort, order) for name, sort in zip(heads, sorts, strict=True))
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(caption)}">'
        f"<table><caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(name: str, sort: str, order: str) -> str:
    if not sort:
        return f'<th scope="col">{name}</th>'
    direction = {sort: "ascending", f"-{sort}": "descending"}.get(order, "none")
    button = f'<button type="button" data-sort="{sort}" data-keep="sort {sort}">{name}</button>'
    return f'<th scope="col" aria-sort="{direction}">{button}</th>'
