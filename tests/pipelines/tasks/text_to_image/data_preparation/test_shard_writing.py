"""Preparation: dirt is counted, stopping loses nothing, damage is mended, other settings are refused."""

import json

import numpy as np
import pytest

from pipelines.tasks.text_to_image.data_preparation.filtering import FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.preparation_manifest import PreparationError
from pipelines.tasks.text_to_image.data_preparation.shard_writing import PreparationOptions, prepare_shards
from pipelines.tasks.text_to_image.data_preparation.sources.finding import find_sources
from pipelines.tasks.text_to_image.image_codes.image_code_record import captions_and_codes, iterate_shard, read_layout

OPTIONS = PreparationOptions(shard_size=16, batch_size=4, num_workers=2)


@pytest.fixture
def tars(tmp_path, make_tar, make_png):
    folder = tmp_path / "tars"
    folder.mkdir()
    dirt = {
        3: {"caption": "x"},
        17: {"nsfw": "NSFW"},
        18: {"picture": b"corrupt"},
        25: {"picture": None},
        26: {"picture": make_png(26, (64, 16))},
    }
    make_tar(folder / "00000.tar", range(0, 20), dirt)
    make_tar(folder / "00001.tar", range(20, 50), dirt)
    return folder


def shard_bytes(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def prepare(tars, codec, output, options=OPTIONS, on_progress=lambda progress: None):
    return prepare_shards(find_sources([tars]), codec, output, options, on_progress)


def records(output) -> tuple[list[str], np.ndarray]:
    parts = [
        captions_and_codes(batch, num_codes=16)
        for path in sorted(output.glob("*.parquet"))
        for batch in iterate_shard(path)
    ]
    return [caption for captions, _ in parts for caption in captions], np.concatenate([codes for _, codes in parts])


def stop_after(num_samples: int):
    def on_progress(progress):
        if progress.num_samples >= num_samples:
            raise KeyboardInterrupt

    return on_progress


def test_clean_samples_become_records_and_dirt_is_counted_by_reason(tars, codec, tmp_path):
    result = prepare(tars, codec, tmp_path / "out")
    captions, _ = records(tmp_path / "out")
    assert captions == [f"picture number {i}" for i in range(50) if i not in (3, 17, 18, 25, 26)]
    assert result.report.kept == 45 and result.report.seen == 50
    assert dict(result.report.dropped) == {
        "short_caption": 1,
        "nsfw": 1,
        "extreme_aspect_ratio": 1,
        "missing_image": 1,
        "corrupt_image": 1,
    }
    assert result.report.unreadable == (
        "00000.tar: 000018 (corrupt_image)",
        "00001.tar: 000025 (missing_image)",
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["kept"], report["seen"], report["num_shards"]) == (45, 50, 4)
    assert (
        report["codec_fingerprint"]
        == codec.fingerprint
        == read_layout(tmp_path / "out/train-00000.parquet").codec_fingerprint
    )


def test_each_shard_holds_a_fixed_span_of_the_input(tars, codec, tmp_path):
    result = prepare(tars, codec, tmp_path / "out")
    assert [shard.report.seen for shard in result.shards] == [16, 16, 16, 2]
    assert [(shard.end.source, shard.end.sample) for shard in result.shards][:3] == [(0, 16), (1, 12), (1, 28)]


def test_progress_never_goes_back_and_ends_with_every_sample(tars, codec, tmp_path):
    heard = []
    prepare(tars, codec, tmp_path / "out", on_progress=heard.append)
    assert [progress.num_samples for progress in heard] == sorted(progress.num_samples for progress in heard)
    assert (heard[-1].num_samples, heard[-1].num_shards) == (50, 4)
    assert heard[-1].bytes_read == heard[-1].num_bytes == sum(path.stat().st_size for path in tars.iterdir())


@pytest.mark.parametrize("num_samples", [16, 21, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 49))])
def test_a_stopped_run_continues_to_the_same_bytes(tars, codec, tmp_path, num_samples):
    prepare(tars, codec, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        prepare(tars, codec, tmp_path / "stopped", on_progress=stop_after(num_samples))
    kept = shard_bytes(tmp_path / "stopped")
    result = prepare(tars, codec, tmp_path / "stopped")
    assert result.num_shards_kept >= len(kept) - 1
    assert shard_bytes(tmp_path / "stopped") == shard_bytes(tmp_path / "whole")
    for name in ("manifest.json", "report.json"):
        assert (tmp_path / "stopped" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_a_finished_folder_is_left_as_it_is(tars, codec, tmp_path):
    prepare(tars, codec, tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    result = prepare(tars, codec, tmp_path / "out")
    assert result.num_shards_kept == 4 and result.report.kept == 45
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")} == before


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_only_the_damaged_shard_is_made_again(tars, codec, tmp_path, damage):
    output = tmp_path / "out"
    prepare(tars, codec, output)
    whole = shard_bytes(output)
    broken = output / "train-00001.parquet"
    content = bytearray(broken.read_bytes())
    if damage == "truncate":
        broken.write_bytes(content[:-7])
    elif damage == "flip":
        content[200] ^= 1
        broken.write_bytes(content)
    else:
        broken.unlink()
    assert prepare(tars, codec, output).num_shards_kept == 3
    assert shard_bytes(output) == whole


def test_leftovers_of_a_killed_run_are_removed(tars, codec, tmp_path):
    prepare(tars, codec, tmp_path / "out")
    (tmp_path / "out" / ".train-00004.parquet.123.partial").write_bytes(b"half a shard")
    (tmp_path / "out" / "dropped" / ".nsfw-00000-0.jpg.123.partial").write_bytes(b"half a picture")
    prepare(tars, codec, tmp_path / "out")
    assert not list((tmp_path / "out").rglob(".*"))


def test_a_truncated_tar_is_read_as_far_as_it_goes_and_named(tars, codec, tmp_path):
    path = tars / "00000.tar"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    result = prepare(tars, codec, tmp_path / "out")
    captions, _ = records(tmp_path / "out")
    assert "picture number 0" in captions and "picture number 19" not in captions and "picture number 49" in captions
    (damage,) = result.report.damaged_sources
    assert damage.startswith("00000.tar: ") and "later ones are lost" in damage


def test_damage_at_the_very_end_of_a_span_is_reported_once(codec, tmp_path, make_tar):
    path = tmp_path / "a.tar"
    make_tar(path, range(16))
    with path.open("r+b") as file:
        file.truncate(16 * 3 * 512 * 2 + 16 * 512)
    result = prepare(path, codec, tmp_path / "out")
    again = prepare(path, codec, tmp_path / "out")
    assert len(result.report.damaged_sources) == 1 and again.report == result.report


def test_spans_with_nothing_worth_keeping_make_no_shard(codec, tmp_path, make_tar):
    make_tar(tmp_path / "a.tar", range(40), {index: {"caption": ""} for index in range(16, 32)})
    result = prepare(tmp_path / "a.tar", codec, tmp_path / "out")
    assert [shard.name for shard in result.shards] == ["train-00000.parquet", None, "train-00002.parquet"]
    assert prepare(tmp_path / "a.tar", codec, tmp_path / "out").num_shards_kept == 3


def test_a_folder_begun_with_another_codec_is_refused_and_kept(tars, codec, make_codec, tmp_path):
    prepare(tars, codec, tmp_path / "out")
    before = shard_bytes(tmp_path / "out")
    other = make_codec(seed=1)
    with pytest.raises(
        PreparationError, match=f"has codes of codec {codec.fingerprint}, this codec is {other.fingerprint}"
    ):
        prepare(tars, other, tmp_path / "out")
    assert shard_bytes(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard_size": 8}, "was started with shard_size = 16, now it is 8"),
        ({"policy": FilterPolicy(min_caption_length=5)}, "was started with filter = "),
    ],
)
def test_a_folder_begun_with_other_settings_is_refused(tars, codec, tmp_path, changes, message):
    prepare(tars, codec, tmp_path / "out")
    options = PreparationOptions(**{**OPTIONS.__dict__, **changes})
    with pytest.raises(PreparationError, match=message):
        prepare(tars, codec, tmp_path / "out", options)


def test_a_folder_begun_from_other_sources_is_refused(tars, codec, tmp_path):
    prepare(tars, codec, tmp_path / "out")
    (tars / "00001.tar").unlink()
    with pytest.raises(PreparationError, match="was started with sources = "):
        prepare(tars, codec, tmp_path / "out")


def test_more_sources_add_shards_and_leave_the_others_alone(codec, tmp_path, make_tar):
    for number in range(2):
        make_tar(tmp_path / f"{number}.tar", range(20 * number, 20 * number + 20))
    first, both = ([tmp_path / f"{number}.tar" for number in range(count)] for count in (1, 2))
    prepare_shards(find_sources(first), codec, tmp_path / "out", OPTIONS)
    before = shard_bytes(tmp_path / "out")
    result = prepare_shards(find_sources(both), codec, tmp_path / "out", OPTIONS)
    after = shard_bytes(tmp_path / "out")
    assert result.num_shards_kept == len(before) == 2 and {name: after[name] for name in before} == before
    assert records(tmp_path / "out")[0] == [f"picture number {i}" for i in range(40)]
    (tmp_path / "out/train-00001.parquet").unlink()  # the partial one, which ended with the first tar
    again = prepare_shards(find_sources(both), codec, tmp_path / "out", OPTIONS)
    assert shard_bytes(tmp_path / "out") == after and again.num_shards_kept == len(result.shards) - 1
    with pytest.raises(PreparationError, match="was started with sources = "):
        prepare_shards(find_sources(first), codec, tmp_path / "out", OPTIONS)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "manifest.json is damaged"), ('{"format": 9}', "manifest.json has format 9, this version knows 1")],
)
def test_a_damaged_manifest_is_refused(tars, codec, tmp_path, text, message):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text(text)
    with pytest.raises(PreparationError, match=message):
        prepare(tars, codec, tmp_path / "out")


@pytest.mark.parametrize("name", ["shard_size", "batch_size", "num_workers"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0; expected at least 1"):
        PreparationOptions(**{name: 0})
