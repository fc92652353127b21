"""`dalle-collab start`: what it refuses before hours of work, how it divides its time, and what it never loses."""

import io

import pytest
from PIL import Image
from rich.console import Console

from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.reel_captions import captions_to_draw
from pipelines.tools.demo.demo_plan import DemoPlan, split_name
from pipelines.tools.demo.own_pictures import (
    FEWEST_CLIP_STEPS,
    FEWEST_PICTURES,
    MOST_CODEC_MINUTES,
    TimePlan,
    read_captions,
    run_own_pictures,
)
from pipelines.tools.demo.running.output_folder import demo_folder
from pipelines.tools.demo.running.progress_lines import ProgressLines

NAMES = ReadingOptions(caption_from="name")


def write_pictures(folder, number, name="red robin {}"):
    folder.mkdir(exist_ok=True)
    for one in range(number):
        Image.effect_noise((8, 8), one + 1.0).save(folder / f"{name.format(one)}.png")


def started(tmp_path, name="org/birds", **changes):
    options = dict(hours=1.0, reading=NAMES, is_online=False) | changes
    return run_own_pictures(tmp_path / "pictures", name, tmp_path / "output", Console(file=io.StringIO()), **options)


@pytest.mark.parametrize(
    "name",
    [
        "birds",
        "org/",
        "/birds",
        "org/birds/more",
        "org/my birds",
        "../birds",
        "org/..",
        "org/a--b",
        "org/a-",
        "org/a.git",
    ],
)
def test_a_name_that_is_none_on_the_hub_is_refused(name):
    with pytest.raises(ValueError, match="expected ORG/NAME"):
        split_name(name)


@pytest.mark.parametrize(
    ("number", "changes", "part"),
    [
        (FEWEST_PICTURES - 1, {}, "has 99 pictures with usable captions; expected 100 or more"),
        (FEWEST_PICTURES, dict(reading=ReadingOptions()), "has 0 pictures .* --caption-from name"),
        (FEWEST_PICTURES, dict(hours=0.05), "--hours is 0.05"),
        (FEWEST_PICTURES, dict(hours=float("nan")), "--hours is nan"),
    ],
)
def test_what_cannot_become_a_run_is_refused_before_anything_is_written(tmp_path, number, changes, part):
    write_pictures(tmp_path / "pictures", number)
    with pytest.raises(ValueError, match=part):
        started(tmp_path, **changes)
    assert not (tmp_path / "output").exists()


def test_captions_to_draw_are_those_of_most_pictures_each_once_and_always_the_same(tmp_path):
    write_pictures(tmp_path / "pictures", 3, "red robin {}")
    write_pictures(tmp_path / "pictures", 2, "blue tit {}")
    captions = read_captions(tmp_path / "pictures", NAMES)
    assert len(captions) == 5
    assert captions_to_draw(captions.values(), 2) == ["red robin", "blue tit"]
    assert captions_to_draw(["red kite"] * 3 + ["red robin", "red tit", "blue tit"], 3)[:2] == ["red kite", "blue tit"]
    many = [f"bird {number}" for number in range(40)]
    assert captions_to_draw(many, 12) == captions_to_draw(many[::-1], 12)


@pytest.mark.parametrize("hours", [0.1, 0.25, 1, 8, 100])
def test_the_model_gets_at_least_half_of_the_time(hours):
    plan = TimePlan.of(hours)
    assert 0.5 * hours <= plan.training_hours < hours - plan.codec_minutes / 60
    assert plan.codec_minutes <= MOST_CODEC_MINUTES and plan.clip_steps >= FEWEST_CLIP_STEPS


def test_a_run_that_is_begun_is_not_lost_to_other_options(tmp_path):
    lines = ProgressLines(Console(file=io.StringIO()))
    with demo_folder(tmp_path / "run", dict(hours=8), lines, keeps_others=True):
        (tmp_path / "run" / "work" / "codec").write_text("an hour's work")
    with (
        pytest.raises(ValueError, match=r"hours was 8 and is 1\). Give the same ones"),
        demo_folder(tmp_path / "run", dict(hours=1), lines, keeps_others=True),
    ):
        pass
    # Nor to a demo that is told to use its folder.
    with (
        pytest.raises(ValueError, match="has a run of other pictures or options"),
        demo_folder(tmp_path / "run", dict(num_pictures=16_000), lines),
    ):
        pass
    assert (tmp_path / "run" / "work" / "codec").exists()
    # An older version knew fewer options, and its run goes on.
    with demo_folder(tmp_path / "run", dict(hours=8, announce="new"), lines, keeps_others=True):
        assert (tmp_path / "run" / "work" / "codec").exists()


def test_a_plan_with_somebodys_own_pictures_trains_on_those_and_reads_captions_as_told(tmp_path):
    pictures = tmp_path / "pictures"
    plan = DemoPlan(name="mine", output=tmp_path, run_settings={}, own_pictures=pictures, reading=NAMES)
    assert plan.pictures_to_train_on == pictures
    assert plan.caption_options == ("--caption-lines", "drop", "--caption-from", "name")
    assert plan.ingredients["caption_from"] == "name"
