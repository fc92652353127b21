"""The dataset's page as one HTML file without scripts. All text is escaped: captions come from the web.

Axis names: picture, side.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from hub_tools.printing.marked_up import escaped
from pipelines.tasks.text_to_image.data_preparation.inspection.dataset_facts import CAPTION_BIN, DatasetFacts
from pipelines.tasks.text_to_image.data_preparation.pictures.dropped_pictures import DroppedPicture
from pipelines.tools.pages.dataset.page_look import STYLE
from pipelines.tools.pages.text import short_number

LARGEST_SHOWN_SIDE = 256
SMOOTH_SIDE = 128
"""Smaller pictures are shown with visible pixels."""

MOST_CAPTION_CHARACTERS = 200
MOST_STEPS = 256
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True, kw_only=True)
class DatasetPage:
    """What the page shows."""

    name: str
    """Of the dataset."""
    facts: DatasetFacts
    """Its figures."""
    pictures: np.ndarray
    """(picture, side, side, 3) uint8: decoded from the codes of some records."""
    captions: Sequence[str]
    """Their captions."""
    report: Mapping[str, Any] | None = None
    """`report.json`: what was kept and dropped; None where it is missing."""
    settings: Mapping[str, Any] | None = None
    """The settings in `manifest.json`; None where it is missing."""
    dropped: Sequence[DroppedPicture] = ()
    """Some of what was dropped."""


def dataset_page(page: DatasetPage) -> str:
    """The page as HTML, for one file of some hundred kilobytes."""
    title = escaped(page.name)
    sections = [
        _heading(page),
        _contact_sheet(page),
        _codes(page.facts),
        _captions(page.facts),
        _cut(page.facts),
        _dropped(page),
        _making(page),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


def _heading(page: DatasetPage) -> str:
    facts = page.facts
    per_record = facts.num_bytes / max(1, facts.num_records)
    grid = facts.layout.grid_size
    tiles = [
        ("records", f"{facts.num_records:,}"),
        ("shards", f"{facts.num_shards:,}"),
        ("bytes per record", f"{per_record:,.0f}"),
        ("codes of a picture", f"{grid} × {grid}"),
        ("codes in use", f"{facts.num_codes_used:,} of {facts.layout.codebook_size:,}"),
        ("bits per code", f"{facts.entropy_bits:.2f}"),
    ]
    shown = "".join(f"<div><dt>{name}</dt><dd>{escaped(value)}</dd></div>" for name, value in tiles)
    part = (
        ""
        if facts.num_records_read == facts.num_records
        else f" The figures below are those of {facts.num_records_read:,} records of evenly spread shards."
    )
    return (
        f'<h1>{escaped(page.name)}</h1><p class="lead">Captions with the image codes of their pictures, made by codec '
        f'<code>{escaped(facts.layout.codec_fingerprint)}</code>.{part}</p><dl class="tiles">{shown}</dl>'
    )


def _contact_sheet(page: DatasetPage) -> str:
    if not len(page.pictures):
        return ""
    kind = "small" if page.pictures.shape[1] < SMOOTH_SIDE else ""
    figures = [
        _figure(picture_address(picture), caption, kind)
        for picture, caption in zip(page.pictures, page.captions, strict=True)
    ]
    return (
        "<h2>What a model will see</h2><p>Records spread evenly over the dataset, decoded from their codes.</p>"
        f'<ul class="sheet">{"".join(figures)}</ul>'
    )


def picture_address(picture: np.ndarray) -> str:
    """A picture (side, side, 3) uint8 as a data address: a JPEG, of small pictures a PNG, which stays sharp."""
    shown, stored = Image.fromarray(picture), io.BytesIO()
    if max(shown.size) > LARGEST_SHOWN_SIDE:
        shown.thumbnail((LARGEST_SHOWN_SIDE, LARGEST_SHOWN_SIDE))
    kind = "PNG" if max(shown.size) <= SMOOTH_SIDE // 2 else "JPEG"
    shown.save(stored, kind, quality=85)
    return _data_address(stored.getvalue(), kind.lower())


def _data_address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _figure(address: str | None, caption: str, kind: str = "") -> str:
    short = caption[:MOST_CAPTION_CHARACTERS]
    seen = (
        f'<img class="{kind}" src="{address}" loading="lazy" alt="{escaped(short)}">'
        if address
        else '<div class="none">nothing to see</div>'
    )
    return f"<li><figure>{seen}<figcaption>{escaped(short)}</figcaption></figure></li>"


def _codes(facts: DatasetFacts) -> str:
    codebook = facts.layout.codebook_size
    most = np.log2(codebook)
    floor = facts.entropy_bits * facts.layout.num_codes / 8
    raw = 2 * facts.layout.num_codes
    per_record = facts.num_bytes / max(1, facts.num_records)
    ranked = np.sort(facts.code_counts)[::-1]
    share = ranked[: max(1, codebook // 100)].sum() / max(1, ranked.sum())
    rows = [
        ("this dataset, with captions", per_record),
        ("codes as 16-bit numbers", raw),
        ("entropy of the codes", floor),
    ]
    return (
        f"<h2>Codes</h2><p>A code carries {facts.entropy_bits:.2f} bits of information, of {most:.2f} if all "
        f"{codebook:,} were equally frequent. {codebook - facts.num_codes_used:,} never occur; the most frequent "
        f"hundredth makes up {_percent(share)}.</p>"
        f'<div class="two"><div><h3>How often each code occurs, the most frequent first</h3>{_steps(ranked)}</div>'
        f"<div><h3>Bytes of a record</h3>{_bars((name, value, f'{value:,.0f}') for name, value in rows)}</div></div>"
    )


def _captions(facts: DatasetFacts) -> str:
    words = "".join(
        f"<li><bdi>{escaped(word)}</bdi> <small>{short_number(count)}</small></li>" for word, count in facts.words
    )
    num_bins = 1 + int(facts.caption_lengths.nonzero()[0].max(initial=0))
    is_open = num_bins == len(facts.caption_lengths)
    last = f"{CAPTION_BIN * (num_bins - 1)} and more" if is_open else f"{CAPTION_BIN * num_bins}"
    return (
        '<h2>Captions</h2><div class="two"><div><h3>Their lengths, in characters</h3>'
        f"{_columns(facts.caption_lengths[:num_bins], ('0', last), CAPTION_BIN)}</div>"
        f'<div><h3>Words that most captions have</h3><ul class="words">{words}</ul></div></div>'
    )


def _cut(facts: DatasetFacts) -> str:
    if not facts.cut_shares.sum():
        return ""
    if facts.layout.fit == "pad":
        words = "Pictures were padded: nothing is cut off. Cropped, this share of their area would be missing."
    elif not facts.mean_cut_share:
        words = "All pictures are square: nothing is cut off."
    else:
        much = facts.cut_shares[3:].sum() / facts.cut_shares.sum()
        words = (
            f"The central square of each picture is kept. On average {_percent(facts.mean_cut_share)} of a picture's "
            f"area is cut off; of {_percent(much)} of the pictures it is 30 % or more. "
            "<code>data prepare --fit pad</code> keeps all."
        )
    ends = ("nothing cut", "all cut")
    return f"<h2>Cut off</h2><p>{words}</p>{_columns(facts.cut_shares, ends, 0)}"


def _dropped(page: DatasetPage) -> str:
    if page.report is None:
        return ""
    kept, dropped = int(page.report["kept"]), dict(page.report["dropped"])
    seen = max(1, kept + sum(dropped.values()))
    rows = [("kept", kept, f"{kept:,} ({_percent(kept / seen, 1)})")]
    rows += [
        (_words(name), count, f"{count:,} ({_percent(count / seen, 1)})")
        for name, count in sorted(dropped.items(), key=lambda entry: -entry[1])
    ]
    reasons = sorted({one.reason for one in page.dropped}, key=lambda reason: -dropped.get(reason, 0))
    sheets = "".join(_dropped_sheet(page, reason, dropped.get(reason, 0)) for reason in reasons)
    return f"<h2>Kept and dropped</h2><p>{seen:,} samples were looked at.</p>{_bars(rows, drop=len(rows) - 1)}{sheets}"


def _dropped_sheet(page: DatasetPage, reason: str, count: int) -> str:
    figures = [
        _figure(_data_address(one.picture.read_bytes(), "jpeg") if one.picture else None, one.caption or one.key)
        for one in page.dropped
        if one.reason == reason
    ]
    shown = f"{len(figures)} of {count:,}" if count > len(figures) else f"{len(figures)}"
    return f'<h3>{escaped(_words(reason))}, {shown}</h3><ul class="sheet dropped">{"".join(figures)}</ul>'


def _making(page: DatasetPage) -> str:
    layout = page.facts.layout
    rows = [("precision", layout.precision), ("pictures encoded together", layout.sub_batch_size), ("fit", layout.fit)]
    filters = (page.settings or {}).get("filter", {})
    rows += [(f"filter: {_words(name)}", value) for name, value in filters.items()]
    shown = "".join(
        f"<tr><th>{escaped(name)}</th><td>{escaped(value)}</td></tr>" for name, value in rows if value is not None
    )
    return f'<h2>How it was made</h2><table class="bars">{shown}</table>' if shown else ""


def _percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f} %"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _bars(rows: Iterable[tuple[str, float, str]], drop: int = 0) -> str:
    """Rows of name, value and words; the last `drop` ones are in the colour of what is lost."""
    rows = list(rows)
    most = max((value for _, value, _ in rows), default=0) or 1
    cells = [
        f'<tr class="{"drop" if number >= len(rows) - drop else "keep"}"><th scope="row">{escaped(name)}</th>'
        f'<td><span style="width:{100 * value / most:.2f}%"></span></td><td>{escaped(words)}</td></tr>'
        for number, (name, value, words) in enumerate(rows)
    ]
    return f'<table class="bars">{"".join(cells)}</table>'


def _columns(counts: np.ndarray, ends: tuple[str, str], unit: int) -> str:
    most = max(1, counts.max())
    heights = 100 * counts / most
    columns = "".join(
        f'<rect x="{number + 0.05:.2f}" width="0.9" y="{100 - heights[number]:.2f}" height="{heights[number]:.2f}">'
        f"<title>{_range(number, unit, len(counts))}: {count:,}</title></rect>"
        for number, count in enumerate(counts)
    )
    return (
        f'<div class="plot"><svg viewBox="0 0 {len(counts)} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="histogram">{columns}</svg><div class="scale"><span>{ends[0]}</span><span>{ends[1]}</span></div>'
        "</div>"
    )


def _range(number: int, unit: int, num_bins: int) -> str:
    if not unit:
        return f"{_percent(number / num_bins)} to {_percent((number + 1) / num_bins)}"
    return f"{number * unit} to {(number + 1) * unit - 1}"


def _steps(ranked: np.ndarray) -> str:
    """Counts in descending order as an area with a logarithmic height, thinned to MOST_STEPS."""
    groups = [group.mean() for group in np.array_split(ranked, min(MOST_STEPS, len(ranked)))]
    heights = np.log10(np.array(groups) + 1)
    top = max(float(heights.max()), 1e-9)
    points = "".join(f"V{100 - 100 * height / top:.2f}H{number + 1}" for number, height in enumerate(heights))
    return (
        f'<div class="plot"><svg viewBox="0 0 {len(heights)} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="frequency of codes"><path d="M0 100{points}V100Z"/></svg>'
        f'<div class="scale"><span>{short_number(float(ranked[0]))} times</span><span>logarithmic height</span>'
        f"<span>{short_number(float(ranked[-1]))} times</span></div></div>"
    )
