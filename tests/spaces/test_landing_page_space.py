"""The landing page, served as plain files: it shows a run that is well, and says what is the matter with any other."""

import html.parser
import random
import re
import socket
from pathlib import Path

import pytest
from browsing import SIZES, needs_browser, serious_findings, served, take_picture, watched_page
from run_moments import MOMENTS, NOW

from hub_tools.counted import date, duration, file_size, memory_size, nats
from hub_tools.publishing.space_bundling import bundle_folder

SPACE = Path(__file__).parents[2] / "spaces" / "landing_page"
TEXTS = sorted(path for path in SPACE.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg", ".json"))
SETTINGS = {
    "run": "org/robins",
    "training_dashboard": "org/dashboard",
    "memory_calculator": "org/calculator",
    "text_to_image_demo": "org/draw",
    "join_training": "org/join",
}
FAILED_REQUEST = "Failed to load resource"


class Attributes(html.parser.HTMLParser):
    """All tags of a page with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def values(self, name):
        return [attributes[name] for _, attributes in self.tags if name in attributes]


@pytest.fixture(scope="module")
def index():
    return Attributes((SPACE / "index.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_no_file_names_another_host(path):
    hosts = re.findall(r"https?://([\w.-]+)", path.read_text(encoding="utf-8"))
    # The Hub in the settings, which publishing replaces, and the name of SVG's namespace.
    assert set(hosts) <= ({"huggingface.co"} if path.name == "settings.json" else {"www.w3.org"})


def test_every_file_that_the_page_or_its_scripts_name_is_there(index):
    named = [SPACE / value for value in index.values("href") + index.values("src") if not value.startswith("#")]
    for script in SPACE.glob("scripts/*.js"):
        named += [script.parent / name for name in re.findall(r'from "(\./[^"]+)"', script.read_text(encoding="utf-8"))]
    assert len(named) > 30
    assert [str(path) for path in named if not path.is_file()] == []


def test_every_place_that_scripts_and_links_look_for_is_in_the_page(index):
    places = index.values("id")
    assert len(places) == len(set(places))
    wanted = {value[1:] for value in index.values("href") if value.startswith("#")} | set(index.values("for"))
    for script in SPACE.glob("scripts/*.js"):
        wanted |= set(re.findall(r'(?:byId|bindSlider)\("([\w-]+)"', script.read_text(encoding="utf-8")))
    assert wanted - set(places) == set()


def test_nothing_from_the_hub_can_become_markup(index):
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in SPACE.glob("scripts/*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", scripts)
    (policy,) = [value for tag, value in index.tags if value.get("http-equiv") == "Content-Security-Policy"]
    assert "script-src 'self';" in policy["content"] and "unsafe" not in policy["content"]


def camel_case(name):
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@pytest.fixture(scope="module")
def address(hub, tmp_path_factory):
    from landing_page_runs import publish_runs

    publish_runs(hub, tmp_path_factory.mktemp("runs"))
    bundle = tmp_path_factory.mktemp("bundle") / "space"
    bundle_folder(SPACE, bundle, {**SETTINGS, "hub": hub.endpoint})
    with served(bundle) as there:
        yield there


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("size", SIZES)
def test_a_person_sees_a_run_of_30_000_epochs_and_500_users(hub, address, size, tmp_path):
    from landing_page_runs import HOSTILE_NAME, PROMPTS

    with watched_page(address, size, allowed=(hub.endpoint,)) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script of a stranger ran: {dialog.message}"))
        page.locator("#status[data-state=alive]").wait_for(timeout=30_000)
        page.locator("#data-figures").wait_for()
        assert "The run is at epoch 30,000 of 31,250" in page.locator("#status-text").inner_text()
        assert page.locator("#live-plots path").count() == 3
        assert page.locator("#objective-plot .plot-note").inner_text() == "1 value lies beyond this scale."
        first = page.locator("#leaderboard-rows tr").first
        assert first.locator("th").inner_text() == HOSTILE_NAME and page.locator("main img").count() == 2
        assert page.locator("#live-peers-picture .peer-name").count() == 10
        words = page.locator("#live-peers-words").inner_text()
        assert f"{HOSTILE_NAME} (30.5), alice (15.3)" in words and words.endswith(", and 2 more.")
        assert page.locator("#reel-prompts li").last.inner_text() == "<b>bold</b> & brave"
        for picture in ("reel-picture", "hero-drawn-picture"):
            assert page.evaluate(f"document.getElementById('{picture}').decode().then(() => true)")
        assert page.locator("#hero-drawn-prompts li").all_inner_texts() == list(PROMPTS)
        assert page.locator("#hero-picture").is_hidden() and page.locator("#hero-drawn").is_visible()
        preview = page.locator("meta[property='og:image']").get_attribute("content")
        assert preview == f"{hub.endpoint}/org/robins/resolve/main/progress_reel/newest.jpg"
        page.emulate_media(reduced_motion="reduce")
        take_picture(page, "landing_page", tmp_path)
        assert serious_findings(page) == []
        page.emulate_media(color_scheme="dark")
        take_picture(page, "landing_page_dark", tmp_path)
        assert serious_findings(page) == []


@pytest.mark.slow
@needs_browser
def test_everything_can_be_moved_with_the_keyboard_and_a_volunteer_has_a_page(hub, address, tmp_path):
    with watched_page(address, allowed=(hub.endpoint,)) as page:
        page.locator("#status[data-state=alive]").wait_for(timeout=30_000)
        read = page.locator("#objective-plot output")
        newest = read.inner_text()
        assert newest.startswith("epoch 30,000 · ")
        page.locator("#objective-plot .plot-frame").press("ArrowLeft")
        assert read.inner_text() != newest
        assert page.locator("#budget-product").inner_text().endswith("×")
        before = page.locator("#budget-product").inner_text()
        page.get_by_label("share layers").press("Space")
        assert page.locator("#budget-product").inner_text() != before
        page.get_by_role("slider", name="Hostile peers").press("Home")
        assert "exactly the mean" in page.locator("#outlier-verdict").inner_text()
        page.get_by_role("slider", name="Hostile peers").press("End")
        assert "no rule can tell" in page.locator("#outlier-verdict").inner_text()
        page.get_by_label("All time").press("ArrowLeft")
        page.get_by_role("button", name="Show all 200").press("Enter")
        assert page.locator("#leaderboard-rows tr").count() == 200
        page.get_by_role("button", name="User").press("Enter")
        assert page.locator("#leaderboard-rows tr .rank").first.inner_text() == "1", "< comes before letters"
        page.get_by_role("button", name="User").press("Enter")
        assert page.locator("#leaderboard-rows th").first.get_attribute("title") == "W" * 96
        assert page.locator("#leaderboard [aria-sort=descending]").inner_text().startswith("User")
        page.locator("#reel-epoch").press("Home")
        assert page.locator("#reel-epoch-value").inner_text().startswith("epoch 100 ")
        page.get_by_role("button", name="Play").press("Enter")
        page.get_by_text("epoch 5,000 · ").wait_for()
        page.get_by_role("button", name="Pause").press("Enter")
        assert page.get_by_role("button", name="Play").is_visible()
        for link in page.get_by_role("link").all():
            target = link.get_attribute("href")
            assert target.startswith(("#", f"{hub.endpoint}/")) or "/" not in target, target
        page.get_by_role("link", name="alice").press("Enter")
        page.get_by_text("alice gave 3,446,095 samples to org/robins: place 2 of 500.").wait_for()
        page.goto(f"{address}?volunteer=nobody")
        page.get_by_text("nobody is not among the 200 users whom the run lists.").wait_for()
        take_picture(page, "landing_page_volunteer", tmp_path)


@pytest.mark.slow
@needs_browser
def test_its_figures_are_those_of_the_training_code(hub, address):
    import torch

    from modeling_dalle_collab import DalleCollabConfig, DalleCollabForConditionalGeneration
    from pipelines.core.averaging.reduce.robust_aggregation import AggregationRule, aggregate
    from pipelines.features.publishing.metrics.run_state import condition_of

    chance = random.Random(3)
    configs = [{}, {"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "attention_pattern": ["row"]}]
    groups = [
        [[chance.gauss(1, 1), chance.gauss(0, 1)] for _ in range(9)] + [[reach, -reach]] * num_hostile
        for num_hostile, reach in ((0, 0.0), (2, 3.0), (3, 5.5), (4, 40.0))
    ]
    with watched_page(address, allowed=(hub.endpoint,)) as page:
        page.locator("#status[data-state=alive]").wait_for(timeout=30_000)
        counts = page.evaluate(
            "async configs => { const m = await import('/scripts/model_sizes.js');"
            " return configs.map(c => m.numParameters(m.readSizes(c))); }",
            configs,
        )
        results = page.evaluate(
            "async groups => { const m = await import('/scripts/robust_aggregation.js');"
            " const rule = {tauRatio: 2, maxNormRatio: 4, numClippingIterations: 100};"
            " return groups.map(group => m.aggregate(group, rule)); }",
            groups,
        )
        numbers = [
            0.27134,
            1.03125,
            2.345649,
            44.5,
            150.0,
            1.25 * 2**30,
            1.35 * 2**20,
            31.2,
            999.6,
            1580.0,
            47_000.0,
            123_456_789.0,
            1.8e9,
            2.5e9,
        ]
        written = page.evaluate(
            "async numbers => { const m = await import('/scripts/numbers.js');"
            " return numbers.map(v => [m.asLoss, m.asBytes, m.asMemory, m.asDuration, m.asDate].map(as => as(v))); }",
            numbers,
        )
        facts = [facts for facts, _ in MOMENTS]
        conditions = page.evaluate(
            "async ([moments, now]) => { const m = await import('/scripts/run_state.js');"
            " return moments.map(facts => m.conditionOf(facts, now)); }",
            [[{camel_case(name): value for name, value in vars(one).items()} for one in facts], NOW],
        )
    assert written == [[as_(one) for as_ in (nats, file_size, memory_size, duration, date)] for one in numbers]
    for one, seen in zip(facts, conditions, strict=True):
        expected = vars(condition_of(one, "org/robins", now=NOW))
        assert seen == {camel_case(name): value for name, value in expected.items() if name != "command"}
    for config, count in zip(configs, counts, strict=True):
        with torch.device("meta"):
            model = DalleCollabForConditionalGeneration(DalleCollabConfig(**config))
        assert count == sum(parameter.numel() for parameter in model.parameters())
    for group, result in zip(groups, results, strict=True):
        expected = aggregate(torch.tensor(group), [1.0] * len(group), AggregationRule())
        assert result["values"] == pytest.approx(expected.values.tolist(), abs=1e-5)
        assert result["excess"] == pytest.approx(expected.excess, rel=1e-4)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(
    ("run", "state", "words", "step"),
    [
        ("org/robins-fresh", "not-begun", "waits for its first epoch", "Join the run"),
        ("org/robins-over", "over", "The run is over: all 29,900 epochs are trained.", "Draw with it"),
        ("org/nobody", "unreachable", "has no public repository org/nobody", "See the repository"),
        (
            "org/robins-codec",
            "unreachable",
            "org/robins-codec has no training_run.json. It is not a",
            "See the repository",
        ),
        ("org/robins-torn", "unreachable", "metrics/summary.json of org/robins-torn is not JSON", "Join the run"),
        ("org/robins-absurd", "unreachable", "has only impossible values", "Join the run"),
        ("<script>", "unreachable", "“<script>” is not the name of a run", "Start your own"),
    ],
)
def test_a_run_that_is_not_well_is_explained_and_the_page_stays_up(hub, address, run, state, words, step, tmp_path):
    with watched_page(f"{address}?run={run}", "phone", allowed=(hub.endpoint,), expected_error=FAILED_REQUEST) as page:
        page.locator(f"#status[data-state={state}]").wait_for(timeout=30_000)
        assert words in page.locator("#status-text").inner_text()
        assert page.get_by_role("heading", name="How it works").is_visible()
        assert page.locator("#next-step").inner_text() == step
        assert page.locator("#join").is_visible() == (step == "Join the run")
        assert page.locator("main img[src=x]").count() == 0
        if run in ("org/robins-fresh", "org/robins-absurd", "org/robins-over"):
            take_picture(page, f"landing_page_{run[11:]}", tmp_path)
            assert serious_findings(page) == []


@pytest.mark.slow
@needs_browser
def test_a_hub_that_is_away_is_said_to_be_away(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        hub = f"http://127.0.0.1:{closed.getsockname()[1]}"
    bundle_folder(SPACE, tmp_path / "space", {"run": "org/robins", "hub": hub})
    with (
        served(tmp_path / "space") as address,
        watched_page(address, allowed=(hub,), expected_error=FAILED_REQUEST) as page,
    ):
        page.locator("#status[data-state=unreachable]").wait_for(timeout=30_000)
        assert page.locator("#status-text").inner_text().startswith(f"{hub} does not answer")
        take_picture(page, "landing_page_away", tmp_path)
