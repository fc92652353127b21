"""A machine's part in a run: state, contribution and findings, as HTML without scripts or external hosts."""

import base64
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlencode

from hub_tools.counted import counted, duration, nats
from hub_tools.endpoint import current_endpoint
from hub_tools.printing.marked_up import escaped
from pipelines.tools.doctor.check_result import STATUSES, CheckResult
from pipelines.tools.pages.joining import join_view
from pipelines.tools.pages.joining.join_view import JoinView
from pipelines.tools.pages.joining.run_profile import USERNAME, RunProfile
from pipelines.tools.pages.joining.volunteer_card import VolunteerCard

TITLES = {
    join_view.IDLE: ("Not taking part", "Check this machine, or start right away."),
    join_view.STARTING: ("Starting", "Loading libraries and contacting the swarm."),
    join_view.ENTERING: ("Joining", "In the swarm; downloading the newest training state."),
    join_view.JOINED: ("Joined", "Reading data and computing the first gradient."),
    join_view.TRAINING: ("Training", "This machine is contributing to the run."),
    join_view.PAUSING: ("Pausing", "Finishing the current micro-batch first."),
    join_view.PAUSED: ("Paused", "The other peers do not wait for this machine."),
    join_view.RESUMING: ("Resuming", "Catching up with the other peers."),
    join_view.STOPPING: ("Stopping", "Leaving the run cleanly."),
    join_view.STOPPED: ("Stopped", "This machine has left the run."),
    join_view.FINISHED: ("Finished", "The run is finished, or your limit is reached."),
    join_view.FAILED: ("Stopped by an error", ""),
}
MARKS = {"ok": "✓", "unknown": "?", "warn": "!", "fail": "✗"}
WORDS = {"ok": "passed", "unknown": "could not be checked", "warn": "warning", "fail": "failure"}
NOTHING = "–"
WIDTH, HEIGHT = 300, 56
PICTURE_SIDE = 720

STYLE = """
.join { --good: #1f6f33; --warn: #8a5200; --bad: #b42318; --calm: #57606a; --line: rgba(128,128,128,0.28);
  --panel: rgba(128,128,128,0.07); color: var(--body-text-color); font-variant-numeric: tabular-nums; }
.dark .join, .dark.join, html[theme=dark] .join { --good: #69db7c; --warn: #ffc34d; --bad: #ff9d94; --calm: #b6bec9; }
.join p, .join h2, .join dl, .join dd, .join ul { margin: 0; padding: 0; }
.join .state { display: flex; gap: 1rem; align-items: center; padding: 1.1rem 1.2rem; border-radius: 14px;
  border: 1px solid var(--line); border-left: 6px solid var(--tone); background: var(--panel); }
.join .state h2 { font-size: 1.55rem; line-height: 1.2; font-weight: 700; color: var(--tone); }
.join .state p { margin-top: 0.2rem; overflow-wrap: anywhere; }
.join .light { flex: none; width: 1.15rem; height: 1.15rem; border-radius: 50%; background: var(--tone); }
.join .state.idle, .join .state.stopped { --tone: var(--calm); }
.join .state.training, .join .state.finished { --tone: var(--good); }
.join .state.paused, .join .state.pausing, .join .state.stopping { --tone: var(--warn); }
.join .state.failed { --tone: var(--bad); }
.join .state.starting, .join .state.entering, .join .state.joined, .join .state.resuming,
.join .state.checking { --tone: var(--accent, #4338ca); }
.join .busy .light { animation: join-pulse 1.4s ease-in-out infinite; }
@keyframes join-pulse { 50% { opacity: 0.25; } }
@media (prefers-reduced-motion: reduce) { .join .busy .light { animation: none; } }
.join .tiles { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 0.6rem; }
.join .tiles > div { padding: 0.7rem 0.8rem; border-radius: 12px; border: 1px solid var(--line);
  background: var(--panel); min-width: 0; }
.join .tiles dt { font-size: 0.82rem; color: var(--body-text-color-subdued, #57606a); }
.join .tiles dd { font-size: 1.3rem; font-weight: 650; line-height: 1.3; overflow-wrap: anywhere; }
.join .tiles dd small { font-size: 0.8rem; font-weight: 400; color: var(--body-text-color-subdued, #57606a); }
.join .speed { margin-top: 0.6rem; padding: 0.7rem 0.8rem; border-radius: 12px; border: 1px solid var(--line); }
.join .speed .line { display: flex; justify-content: space-between; gap: 1rem; font-size: 0.82rem;
  color: var(--body-text-color-subdued, #57606a); }
.join .speed svg { display: block; width: 100%; height: 3.5rem; margin-top: 0.3rem; }
.join .speed polyline { fill: none; stroke: var(--accent, #4338ca); stroke-width: 2;
  vector-effect: non-scaling-stroke; stroke-linejoin: round; }
.join .speed polygon { fill: var(--accent, #4338ca); opacity: 0.13; }
.join summary { font-weight: 600; padding: 0.2rem 0 0.6rem; cursor: pointer; overflow-wrap: anywhere; }
.join .checks:empty { display: none; }
.join .checks { list-style: none; border: 1px solid var(--line); border-radius: 12px; overflow: hidden; }
.join .checks li { display: grid; grid-template-columns: 1.7rem minmax(0, 1fr); gap: 0.2rem 0.5rem; margin: 0;
  padding: 0.5rem 0.8rem; border-bottom: 1px solid var(--line); list-style: none; }
.join .checks li:last-child { border-bottom: none; }
.join .checks .mark { width: 1.45rem; height: 1.45rem; border-radius: 50%; text-align: center; line-height: 1.4rem;
  font-weight: 700; font-size: 0.85rem; color: var(--tone); border: 1.5px solid var(--tone); }
.join .checks b { font-weight: 600; }
.join .checks .seen { color: var(--body-text-color-subdued, #57606a); overflow-wrap: anywhere; }
.join .checks .cure { margin-top: 0.25rem !important; overflow-wrap: anywhere; }
.join .checks .cure b { color: var(--tone); }
.join .checks .ok { --tone: var(--good); }
.join .checks .warn { --tone: var(--warn); background: rgba(200,140,20,0.08); }
.join .checks .fail { --tone: var(--bad); background: rgba(200,40,30,0.08); }
.join .checks .unknown { --tone: var(--calm); }
.join .notice { padding: 0.6rem 0.8rem; border-radius: 10px; border: 1px solid var(--line);
  border-left: 4px solid var(--warn); background: var(--panel); overflow-wrap: anywhere; }
.join .unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.join .run { padding: 1rem 1.2rem; border-radius: 14px; border: 1px solid var(--line); }
.join .run h2 { font-size: 1.2rem; overflow-wrap: anywhere; }
.join .run h2 span { margin-left: 0.6rem; font-size: 0.82rem; font-weight: 400; padding: 0.1rem 0.5rem;
  border: 1px solid var(--line); border-radius: 99px; white-space: nowrap; }
.join .run a { color: var(--accent, #4338ca); text-decoration: underline; }
.join .run img { display: block; width: 100%; max-width: 26rem; margin: 0.7rem 0 0.3rem; border-radius: 10px; }
.join .run .small { font-size: 0.82rem; color: var(--body-text-color-subdued, #57606a); }
.join .run dl { display: grid; grid-template-columns: 6.5rem minmax(0, 1fr); gap: 0.35rem 0.8rem; margin-top: 0.8rem; }
.join .run dd { overflow-wrap: anywhere; }
.join .run dt { color: var(--body-text-color-subdued, #57606a); }
.join .run a.next { display: inline-block; margin-top: 0.8rem; padding: 0.6rem 1.2rem; border-radius: 8px;
  background: #4338ca; color: #ffffff; font-weight: 600; text-decoration: none; }
@media (max-width: 40rem) { .join .run dl { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .join .run dd { margin-bottom: 0.5rem; } }
@media (max-width: 40rem) { .join .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
"""
"""The style sheet of all parts, light and dark."""


def state_html(view: JoinView, now: float) -> str:
    """Return the status indicator: what the machine is doing, in a word and a sentence."""
    name, (title, sentence) = view.phase, TITLES[view.phase]
    if view.is_checking and not view.is_alive:
        name, title = "checking", "Checking this machine"
        sentence = f"Checking: {view.looking_at}" if view.looking_at else "Loading libraries."
    elif name == join_view.IDLE and view.profile is not None and view.profile.run is None:
        title, sentence = "The run cannot be read", f"{view.profile.condition.advice}, or try again in a minute."
    elif view.is_over and name in (join_view.IDLE, join_view.FINISHED):
        name, title, sentence = join_view.FINISHED, "The run is over", "There is nothing left to train. Thank you all."
    words = [view.message or sentence]
    if view.is_alive and view.started is not None:
        since = now - view.started
        words.append(f"{_account(view)}Started {duration(since) if since >= 60 else 'less than a minute'} ago.")
    elif view.all_samples and view.phase != join_view.IDLE:
        words.append(f"Contributed {view.all_samples:,} {view.unit}.")
    is_busy = name == "checking" or view.phase in join_view.COMING_UP | {join_view.RESUMING, join_view.STOPPING}
    return (
        f'<div class="join"><div class="state {name}{" busy" if is_busy else ""}"><span class="light"></span>'
        f'<div><h2 role="status">{title}</h2><p>{escaped(" ".join(filter(None, words)))}</p></div></div></div>'
    )


def run_html(view: JoinView, places: Mapping[str, str]) -> str:
    """Return what the run is, what joining it costs, and what others see of it; nothing for none.

    `places` has the addresses of the pages `DEMO_SPACE` and `LANDING_SPACE`, as far as there are any.
    """
    if (profile := view.profile) is None:
        return ""
    run, condition = profile.run, profile.condition
    task = f"<span>{escaped(run.task)}</span>" if run else ""
    parts = [
        f'<h2><a href="{escaped(f"{current_endpoint()}/{profile.repository}")}">{escaped(profile.repository)}</a>'
        f"{task}</h2><p><b>{condition.state.capitalize()}.</b> {escaped(condition.sentence)}</p>"
    ]
    if profile.picture is not None:
        said = f"Drawn after epoch {profile.picture_epoch:,}"
        parts.append(f'<img src="{_as_data(profile)}" alt="{said}"><p class="small">{said}.</p>')
    if view.is_over:
        parts.append(f"<p>{_use_of_model(profile, places)}</p>")
    elif run is not None:
        rows = {"here today": profile.who_trains(), **profile.costs, "others see": profile.seen_by_others()}
        cells = "".join(f"<dt>{name}</dt><dd>{escaped(text)}</dd>" for name, text in rows.items())
        parts.append(f"<dl>{cells}</dl>")
    return f'<div class="join"><div class="run">{"".join(parts)}</div></div>'


def gift_html(view: JoinView, places: Mapping[str, str]) -> str:
    """Return what the machine's user has given, as a picture to share; nothing before it has ended."""
    is_over = view.phase in (join_view.STOPPED, join_view.FINISHED, join_view.FAILED)
    if not is_over or not view.given_samples or view.profile is None:
        return ""
    name = view.username if USERNAME.fullmatch(view.username) else ""
    card = VolunteerCard(
        profile=view.profile, username=name, samples=view.given_samples, unit=view.unit, standing=view.standing
    )
    source = _card_source(card)
    links = [f'<a href="{source}" download="{escaped(name or "volunteer")}.png">Save the picture</a>']
    if places.get("LANDING_SPACE") and name:
        address = f"{places['LANDING_SPACE']}?{urlencode(dict(run=view.profile.repository, volunteer=name))}"
        links.append(f'<a href="{escaped(address)}">Your page</a>')
    picture = f'<img src="{source}" alt="{escaped(card.sentence)}">'
    return f'<div class="join"><div class="run">{picture}<p>{" · ".join(links)}</p></div></div>'


@lru_cache(maxsize=4)
def _card_source(card: VolunteerCard) -> str:
    return f"data:image/png;base64,{base64.b64encode(card.png()).decode()}"


def _use_of_model(profile: RunProfile, places: Mapping[str, str]) -> str:
    advice, command = escaped(profile.condition.advice), escaped(profile.condition.command)
    if demo := places.get("DEMO_SPACE"):
        return f'<a class="next" href="{escaped(demo)}">{advice}</a>'
    return f"{advice}: <code>{command}</code>"


@lru_cache(maxsize=4)
def _as_data(profile: RunProfile) -> str:
    if profile.picture is None:
        return ""
    small, content = profile.picture.copy(), io.BytesIO()
    small.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    small.save(content, format="JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def contribution_html(view: JoinView) -> str:
    """Return the machine's own figures, and its speed as a small curve; nothing before it has joined."""
    if view.epoch is None:
        return ""
    place = view.standing and f"{view.standing.place} <small>of {view.standing.num_contributors:,}</small>"
    tiles = {
        f"your {view.unit}": f"{view.all_samples:,}",
        f"{view.unit} per second": _number(view.samples_per_second, "{:,.1f}"),
        "epoch": _number(view.epoch, "{:,}") + (f" <small>of {view.num_epochs:,}</small>" if view.num_epochs else ""),
        "loss": nats(view.loss),
        "share averaged": _number(view.share_averaged, "{:.0%}"),
        "peers in the swarm": _number(view.num_peers, "{:,}"),
        "your place": place or NOTHING,
        "counted as yours": f"{view.standing.samples:,}" if view.standing else NOTHING,
    }
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles.items())
    return f'<div class="join"><dl class="tiles">{cells}</dl>{sparkline(view.speeds, view.unit)}</div>'


def sparkline(speeds: Sequence[float], unit: str = "samples") -> str:
    """Return a curve of the speed, oldest value left, from 0 up; nothing for fewer than two values."""
    if len(speeds) < 2:
        return ""
    most = max(speeds) or 1.0
    points = [
        f"{index * WIDTH / (len(speeds) - 1):.1f},{HEIGHT - 2 - speed / most * (HEIGHT - 6):.1f}"
        for index, speed in enumerate(speeds)
    ]
    said = f"{unit.capitalize()} per second: now {speeds[-1]:,.1f}, between {min(speeds):,.1f} and {max(speeds):,.1f}"
    return (
        f'<div class="speed"><div class="line"><span>recent {unit} per second</span>'
        f"<span>max {max(speeds):,.1f}</span></div>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{said}">'
        f'<polygon points="0,{HEIGHT} {" ".join(points)} {WIDTH},{HEIGHT}"></polygon>'
        f'<polyline points="{" ".join(points)}"></polyline></svg></div>'
    )


def checks_html(view: JoinView) -> str:
    """Return what was found about this machine, the worst first once all checks are done, with cures."""
    if not (view.checks or view.check_problem):
        return ""
    shown = view.checks
    if not view.is_checking:
        shown = tuple(sorted(shown, key=lambda result: -STATUSES.index(result.status)))
    rows = "".join(map(_check_row, shown))
    # While training, the findings have been seen already; they are one click away.
    is_open = "" if view.is_alive else " open"
    summary = f"<summary>{escaped(checks_summary(view))}</summary>"
    return f'<div class="join"><details{is_open}>{summary}<ul class="checks">{rows}</ul></details></div>'


def checks_summary(view: JoinView) -> str:
    """Summarise the checks in a sentence."""
    if view.check_problem:
        return f"The checks did not finish: {view.check_problem}"
    if view.is_checking:
        return f"{counted(len(view.checks), 'check')} so far"
    counts = {status: sum(result.status == status for result in view.checks) for status in STATUSES}
    if counts["fail"]:
        return f"{counts['fail']} of {len(view.checks)} checks failed."
    if counts["warn"]:
        return f"No check failed; {counts['warn']} of {len(view.checks)} gave a warning."
    return f"No problems found ({len(view.checks)} checks)."


def notice_html(text: str) -> str:
    """Return a message to the visitor; nothing for none."""
    return f'<div class="join"><p class="notice" role="alert">{escaped(text)}</p></div>' if text else ""


def _check_row(result: CheckResult) -> str:
    cure = ""
    if result.status in ("warn", "fail"):
        expected = f" Expected: {result.expected}." if result.expected else ""
        cure = f'<p class="cure"><b>What to do:</b> {escaped(result.cure)}'
        cure += f'<span class="seen">{escaped(expected)}</span></p>'
    return (
        f'<li class="{result.status}"><span class="mark" aria-hidden="true">{MARKS[result.status]}</span><div>'
        f'<span class="unseen">{WORDS[result.status]}: </span><b>{escaped(result.name)}</b> '
        f'<span class="seen">{escaped(result.seen)}</span>{cure}</div></li>'
    )


def _account(view: JoinView) -> str:
    return f"Contributing as {view.username}. " if view.username else ""


def _number(value: float | None, shape: str) -> str:
    return NOTHING if value is None else shape.format(value)
