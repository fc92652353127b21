"""The page about a dataset: one file without scripts, whatever captions hold, from whatever a folder has."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from browsing import needs_browser, serious_findings, take_picture, watched_page

from pipelines.tasks.text_to_image.data_preparation.inspection.dataset_facts import DatasetFacts
from pipelines.tasks.text_to_image.data_preparation.pictures.dropped_pictures import DroppedPicture
from pipelines.tasks.text_to_image.image_codes.image_code_record import ImageCodeLayout
from pipelines.tools.pages.dataset.dataset_page import DatasetPage, dataset_page

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> \u202e{{7*7}}"


def facts(**changes) -> DatasetFacts:
    layout = ImageCodeLayout(codec_fingerprint="abc", codebook_size=8, grid_size=2, fit="crop", precision="float32")
    values = dict(
        layout=layout,
        num_shards=3,
        num_bytes=12_000,
        num_records=1000,
        num_records_read=1000,
        code_counts=np.array([500, 200, 100, 50, 25, 0, 0, 0]),
        caption_lengths=np.array([0, 5, 9] + [0] * 27),
        words=(("bird", 12), (HOSTILE, 3)),
        cut_shares=np.array([5, 3, 1, 1] + [0] * 6),
        mean_cut_share=0.12,
    )
    return DatasetFacts(**(values | changes))


@pytest.fixture
def page(tmp_path):
    thumbnail = tmp_path / "a.jpg"
    thumbnail.write_bytes(b"\xff\xd8 a picture")
    return DatasetPage(
        name=f"birds {HOSTILE}",
        facts=facts(),
        pictures=np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), np.uint8),
        captions=["a bird", HOSTILE, "long " * 1000],
        report={"kept": 900, "dropped": {"nsfw": 60, "corrupt_image": 40, "text_of_a_picture_is_too_short_or_long": 0}},
        settings={"filter": {"min_caption_length": 3, "max_aspect_ratio": 2.0, "keep": "a-name-" * 12}},
        dropped=[
            DroppedPicture(reason="corrupt_image", key="a.tar/1", caption=HOSTILE, picture=thumbnail),
            DroppedPicture(reason="corrupt_image", key="a.tar/2", caption="", picture=None),
        ],
    )


class Elements(HTMLParser):
    """All elements with their attributes, and whether they are closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_else(page):
    elements = Elements(dataset_page(page))
    assert elements.open == []
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "link", "iframe", "object", "form", "base"}
    for _, attributes in elements.found:
        assert not any(name.startswith("on") for name in attributes)
        assert attributes.get("src", "data:").startswith("data:image/") or "src" not in attributes
    (policy,) = [a["content"] for tag, a in elements.found if a.get("http-equiv")]
    assert policy.startswith("default-src 'none'")


def test_the_page_shows_what_was_counted(page):
    text = re.sub(r"<[^>]*>", " ", dataset_page(page))
    for words in ("1,000", "5 of 8", "birds", "nsfw", "60 (6.0 %)", "900 (90.0 %)", "corrupt image, 2 of 40", "12 %"):
        assert words in text, words
    assert "10 % of the pictures it is 30 % or more" in text and "min caption length" in text
    assert dataset_page(page).count("<img") == 4 and "nothing to see" in text


def test_a_folder_without_report_sizes_or_captions_has_a_page_too(page):
    bare = replace(
        page,
        facts=facts(
            cut_shares=np.zeros(10, int),
            caption_lengths=np.zeros(30, int),
            words=(),
            code_counts=np.zeros(8, int),
            num_records=0,
            num_records_read=0,
        ),
        report=None,
        settings=None,
        dropped=(),
        pictures=np.empty((0, 64, 64, 3), np.uint8),
        captions=[],
    )
    text = dataset_page(bare)
    assert Elements(text).open == [] and "Kept and dropped" not in text and "Cut off" not in text


@pytest.mark.parametrize(
    ("fit", "words"), [("pad", "nothing is cut off"), ("crop", "The central square"), (None, "The central")]
)
def test_the_page_says_what_became_of_the_edges(page, fit, words):
    layout = replace(page.facts.layout, fit=fit)
    assert words in dataset_page(replace(page, facts=facts(layout=layout)))


def test_large_pictures_are_made_small(page):
    large = replace(page, pictures=np.zeros((3, 1024, 1024, 3), np.uint8))
    assert len(dataset_page(large)) < 40_000


def test_only_a_part_of_a_large_folder_is_said_to_be_a_part(page):
    text = dataset_page(replace(page, facts=facts(num_records=10**8)))
    assert "100,000,000" in text and "those of 1,000 records of evenly spread shards" in text


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("size", ["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_readable_in_a_browser(page, tmp_path, size, scheme):
    place = tmp_path / "page.html"
    place.write_text(dataset_page(page), encoding="utf-8")
    with watched_page(place.as_uri(), size) as shown:
        shown.emulate_media(color_scheme=scheme)
        assert shown.locator("h1").inner_text().startswith("birds <script>")
        assert shown.locator("img").count() == 4
        take_picture(shown, f"dataset_{scheme}", tmp_path)
        assert serious_findings(shown) == []
