"""Folders of pictures as people have them: text files, JSON files, tables of all kinds, and what lies beside them."""

import json
import os
import sys
import unicodedata

import pytest
from captioned_files import JPEG, outcomes, read, write_files

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy
from pipelines.tasks.text_to_image.data_preparation.reading.reading_options import ReadingOptions
from pipelines.tasks.text_to_image.data_preparation.sources import folder_source
from pipelines.tasks.text_to_image.data_preparation.sources.folder_source import FolderSource

needs_utf8_names = pytest.mark.skipif(
    sys.getfilesystemencoding() != "utf-8", reason="names of files are in another encoding here"
)


def captions_of(folder, **options) -> dict[str, str | None]:
    samples, damages = read(FolderSource(folder, ReadingOptions(**options)))
    assert damages == []
    return {sample.key: sample.caption for sample in samples}


def test_captions_are_taken_from_names_whatever_lies_beside(tmp_path):
    folder = write_files(tmp_path, dict.fromkeys(("birds/blue_tit-01.jpg", "birds/DSC_0042.jpg"), JPEG))
    write_files(folder, {"birds/blue_tit-01.txt": "not this"})
    assert captions_of(folder, caption_from="name") == {"birds/blue_tit-01.jpg": "blue tit", "birds/DSC_0042.jpg": ""}
    assert set(captions_of(folder, caption_from="folder").values()) == {"birds"}
    with pytest.raises(ValueError, match="or in the column 'title', not in both"):
        ReadingOptions(caption_from="name", caption_column="title")


def test_a_folder_takes_captions_from_text_files_and_tables(tmp_path):
    folder = write_files(tmp_path / "pictures", dict.fromkeys(("b.jpg", "deep/a.png", "c.webp"), JPEG))
    write_files(tmp_path, {"outside.jpg": b"secret", "pictures/b.txt": "from a text file\n"})
    rows = [
        {"file_name": "deep/a.png", "text": "from the table", "NSFW": "UNLIKELY"},
        {"file_name": "absent.jpg", "text": "its picture is lost"},
        {"file_name": "../outside.jpg", "text": "never read"},
        {"file_name": str(tmp_path / "outside.jpg"), "text": "never read either"},
        {"text": "no name"},
        [],
    ]
    write_files(folder, {"metadata.jsonl": "\n".join(map(json.dumps, rows))})
    samples = {sample.key: sample for sample in read(FolderSource(folder))[0]}
    assert list(samples)[:5] == ["b.jpg", "c.webp", "deep/a.png", "../outside.jpg", str(tmp_path / "outside.jpg")]
    assert list(samples)[5:] == ["absent.jpg", "metadata.jsonl:5", "metadata.jsonl:6"]
    assert samples["b.jpg"].caption == "from a text file"
    assert samples["c.webp"].caption is None
    assert (samples["deep/a.png"].caption, samples["deep/a.png"].nsfw) == ("from the table", "UNLIKELY")
    assert [sample.image_bytes for sample in list(samples.values())[3:]] == [None] * 5
    assert outcomes(FolderSource(folder)) == {
        "kept": 2,
        "missing_caption": 1,
        "missing_image": 4,
        "damaged_metadata": 1,
    }


def test_img2datasets_files_are_read_with_their_labels(tmp_path):
    """Its `files` output: a folder for each shard, and beside it the shard's statistics."""
    folder = write_files(
        tmp_path,
        {
            "00000/000000000.jpg": JPEG,
            "00000/000000000.txt": "a cat",
            "00000/000000000.json": json.dumps({"NSFW": "NSFW", "original_width": 640, "original_height": 480}),
            "00000/000000001.jpg": JPEG,
            "00000/000000001.json": json.dumps({"caption": "a dog", "punsafe": 0.01}),
            "00000_stats.json": "{}",
            "00000.parquet": "PAR1",
        },
    )
    assert outcomes(FolderSource(folder)) == {"kept": 1, "nsfw": 1, "unknown_kind": 2}


@pytest.mark.parametrize(
    ("name", "content", "caption"),
    [
        ("captions.csv", "\ufefffile,caption\na.jpg,a cat", "a cat"),
        ("Captions.CSV", 'File Name,ALT_TEXT\na.jpg,"a cat, red"', "a cat, red"),
        ("metadata.csv", "file_name;text\r\n./a.jpg;a cat\r\n", "a cat"),
        ("metadata.tsv", "path\ttext\na.jpg\ta cat", "a cat"),
        ("labels.csv", "caption,image\na cat,a.jpg", "a cat"),
        ("captions.csv", "file,caption\na.jpg,a cat".encode("utf-16"), "a cat"),
        ("captions.csv", "file,caption\na.jpg,ein Kätzchen".encode("latin-1"), None),
        ("captions.csv", 'file,caption\na.jpg,"two\nlines"', "two\nlines"),
        ("metadata.jsonl", '\n{"file_name": "a.jpg", "text": null}\n', None),
        ("metadata.jsonl", '{"file_name": "a.jpg", "TEXT": ["a cat"]}', "a cat"),
        ("metadata.jsonl", '{"file_name": "a.jpg", "text": ["a", "b"]}', "a\nb"),
        ("metadata.jsonl", '{"file_name": "a.jpg", "caption": {"en": "a"}}', None),
    ],
)
def test_tables_are_read_as_spreadsheets_and_people_write_them(tmp_path, name, content, caption):
    write_files(tmp_path, {"a.jpg": JPEG, name: content})
    assert captions_of(tmp_path) == {"a.jpg": caption}


def test_a_damaged_row_is_counted_and_shifts_no_caption(tmp_path):
    table = "file,caption\na.jpg,one,too many\nb.jpg\nc.jpg,three\n,nobody's\n"
    write_files(tmp_path, {**{f"{name}.jpg": JPEG for name in "abc"}, "captions.csv": table})
    assert outcomes(FolderSource(tmp_path)) == {
        "kept": 1,
        "missing_caption": 2,
        "damaged_metadata": 2,
        "missing_image": 1,
    }


def coco(*said, images=(0, 1), **more) -> str:
    """COCO's JSON: said are pairs of a picture's number and a caption."""
    return json.dumps(
        {
            "images": [{"id": number, "file_name": f"{number}.jpg", "license": 4} for number in images],
            "annotations": [{"id": 9, "image_id": number, "caption": caption} for number, caption in said],
            **more,
        }
    )


JSON_TABLES = {
    "COCO": coco((0, "a cat"), (1, "a dog"), (0, "a red cat")),
    "Karpathy": json.dumps(
        {
            "images": [
                {"filename": "0.jpg", "sentences": [{"raw": "a cat"}, {"raw": "a red cat"}]},
                {"filename": "1.jpg", "sentences": [{"raw": "a dog"}]},
            ]
        }
    ),
    "list": json.dumps(
        [{"IMAGE": f"{number}.jpg", "Caption": said} for number, said in ((0, "a cat"), (1, "a dog"), (0, "a red cat"))]
    ),
    "by name": json.dumps({"0.jpg": ["a cat", "a red cat"], "1.jpg": {"caption": "a dog"}}),
}


@pytest.mark.parametrize("content", JSON_TABLES.values(), ids=JSON_TABLES)
@pytest.mark.parametrize(
    ("table", "pictures"),
    [("captions_train.json", ""), ("annotations/x.json", "train2017/"), ("annotations.JSON", "a/b/")],
)
def test_captions_in_one_json_file_are_read_beside_the_pictures_and_elsewhere(tmp_path, content, table, pictures):
    write_files(tmp_path, {f"{pictures}{number}.jpg": JPEG for number in (0, 1)} | {table: content})
    expected = {"0.jpg": "a cat", "0.jpg#2": "a red cat", "1.jpg": "a dog"}
    assert captions_of(tmp_path) == {pictures + key: caption for key, caption in expected.items()}


@pytest.mark.parametrize(
    ("table", "content"),
    [
        ("captions.txt", 'image,caption\n0.jpg,"a cat, red"\n1.jpg,a dog\n0.jpg,a cat\n'),
        ("Flickr8k.token.txt", "0.jpg#0\ta cat, red\n1.jpg#0\ta dog\n0.jpg#1\ta cat\n"),
        ("results_20130124.token", "0.jpg#0\ta cat, red\n1.jpg#0\ta dog\n0.jpg#1\ta cat\n"),
        (
            "results.csv",
            "image_name| comment_number| comment\n0.jpg| 0| a cat, red\n1.jpg| 0| a dog\n0.jpg| 1| a cat\n",
        ),
    ],
)
def test_captions_of_flickr_are_read_as_they_are_handed_out(tmp_path, table, content):
    write_files(tmp_path, {"Images/0.jpg": JPEG, "Images/1.jpg": JPEG, table: content})
    expected = {"0.jpg": "a cat, red", "0.jpg#2": "a cat", "1.jpg": "a dog"}
    assert captions_of(tmp_path) == {f"Images/{key}": caption for key, caption in expected.items()}


def test_a_text_named_captions_beside_a_picture_of_that_name_is_its_caption(tmp_path):
    write_files(tmp_path, {"captions.jpg": JPEG, "captions.txt": "a cat"})
    assert captions_of(tmp_path) == {"captions.jpg": "a cat"}


def test_every_caption_of_coco_is_a_sample_whatever_it_holds(tmp_path):
    table = json.loads(coco((0, "a cat"), (7, "of no picture"), (1, None), (1, ["a", {}]), images=(0, 1, 2)))
    table["annotations"] += [3, {"image_id": 0, "bbox": [1]}]
    table["images"] += ["x", {"id": []}]
    write_files(tmp_path, {"0.jpg": JPEG, "1.jpg": JPEG, "c.json": json.dumps(table), "boxes.json": coco()})
    assert outcomes(FolderSource(tmp_path)) == {
        "kept": 1,
        "missing_image": 1,
        "missing_caption": 1,
        "list_caption": 1,
        "damaged_metadata": 1,
        "unknown_kind": 1,
    }


def test_an_unsafe_label_in_coco_counts(tmp_path):
    write_files(tmp_path, {"0.jpg": JPEG, "c.json": coco((0, "a cat")).replace('"license": 4', '"NSFW": "NSFW"')})
    assert outcomes(FolderSource(tmp_path)) == {"nsfw": 1}


@pytest.mark.parametrize("content", ["[1, 2]", "{}", "[", '[{"file": "a.jpg", "box": [1]}]', '{"images": 3}', "null"])
def test_other_json_is_no_table(tmp_path, content):
    write_files(tmp_path, {"a.jpg": JPEG, "a.txt": "a cat", "b.json": content})
    assert captions_of(tmp_path) == {"a.jpg": "a cat", "b": None}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.csv", 'a.jpg,"a cat, red"\nb.jpg,a dog\n'),
        ("captions.tsv", "a cat, red\ta.jpg\na dog\tb.jpg\n"),
        ("labels.csv", "image_name| number| Sentence\na.jpg| 0| a cat, red\nb.jpg| 0| a dog\n"),
    ],
)
def test_tables_without_names_of_columns_and_with_bars_are_read(tmp_path, name, content):
    write_files(tmp_path, {"a.jpg": JPEG, "b.jpg": JPEG, name: content})
    assert captions_of(tmp_path) == {"a.jpg": "a cat, red", "b.jpg": "a dog"}


def test_a_table_without_names_and_with_more_columns_is_named(tmp_path):
    write_files(tmp_path, {"a.jpg": JPEG, "captions.csv": "a.jpg,1,a cat\na.jpg,2,a dog\n"})
    samples, (damage,) = read(FolderSource(tmp_path))
    assert [sample.caption for sample in samples] == [None]
    assert "captions.csv: its first line should name the columns and is a.jpg, 1, a cat; put one" in str(damage)


def test_a_quote_that_is_never_closed_swallows_no_row_of_a_table_with_tabs(tmp_path):
    rows = [
        'a.jpg\t"a cat',
        "b.jpg\ta dog",
        '"c.jpg\tan owl',
        'd.jpg\t"two',
        'lines"',
        'e.jpg\ta 5" nail',
        "f.jpg\tan ox",
    ]
    files = {f"{name}.jpg": JPEG for name in "abdef"}
    write_files(tmp_path, {**files, "captions.tsv": "\n".join(["file\ttext", *rows])})
    captions = {"a.jpg": "a cat", "b.jpg": "a dog", "d.jpg": "two\nlines", "e.jpg": 'a 5" nail', "f.jpg": "an ox"}
    assert captions_of(tmp_path) == {**captions, '"c.jpg': "an owl"}


def test_rows_that_name_no_picture_are_counted_by_columns_in_any_case(tmp_path):
    rows = [{"TEXT": "a cat"}, {"File-Name": "a.jpg", "TEXT": "a dog"}]
    write_files(tmp_path, {"a.jpg": JPEG, "metadata.jsonl": "\n".join(map(json.dumps, rows))})
    assert outcomes(FolderSource(tmp_path)) == {"kept": 1, "missing_image": 1}


def test_a_table_with_two_columns_of_one_name_is_not_believed(tmp_path):
    write_files(tmp_path, {"a.jpg": JPEG, "captions.csv": "file,text,nsfw,nsfw\na.jpg,a cat,NSFW,UNLIKELY\n"})
    samples, (damage,) = read(FolderSource(tmp_path))
    assert [sample.caption for sample in samples] == [None] and "two columns have the same name" in str(damage)


def test_a_picture_with_five_captions_is_five_samples(tmp_path):
    table = "image,caption\n" + "".join(f"a.jpg,caption number {number}\n" for number in range(5))
    write_files(tmp_path, {"a.jpg": JPEG, "captions.csv": table})
    assert list(captions_of(tmp_path)) == ["a.jpg", "a.jpg#2", "a.jpg#3", "a.jpg#4", "a.jpg#5"]


def test_tables_of_folders_name_pictures_beside_them(tmp_path):
    files = {f"{split}/a.jpg": JPEG for split in ("test", "train")}
    tables = {f"{split}/metadata.csv": f"file_name,text\na.jpg,{split}ed\n" for split in ("test", "train")}
    write_files(tmp_path, {**files, **tables})
    assert captions_of(tmp_path) == {"test/a.jpg": "tested", "train/a.jpg": "trained"}


@needs_utf8_names
def test_names_are_matched_across_systems(tmp_path):
    """macOS decomposes accents, Windows writes backslashes."""
    write_files(
        tmp_path, {unicodedata.normalize("NFD", "d/é.jpg"): JPEG, "captions.csv": "file,text\nd\\é.jpg,a cat\n"}
    )
    assert list(captions_of(tmp_path).values()) == ["a cat"]


def test_a_table_with_endless_rows_or_cells_is_named_as_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_source, "MOST_ROWS", 2)
    cell = f'file,caption\na.jpg,"{"x" * 200_000}"\n'
    write_files(tmp_path, {"a.jpg": JPEG, "captions.csv": "file,text\n" + "a.jpg,one\n" * 3, "metadata.csv": cell})
    samples, damages = read(FolderSource(tmp_path))
    assert len(samples) == 2
    assert [damage.reason.partition(":")[0] for damage in damages] == ["captions.csv", "metadata.csv"]
    assert (
        "more than 2 rows in one folder" in damages[0].reason and "field larger than field limit" in damages[1].reason
    )


def test_pictures_in_all_formats_and_cases_are_seen(tmp_path):
    files = {"a.PNG": JPEG, "b.JFIF": JPEG, "c.Gif": b"GIF89a", "d.svg": b"<svg/>", "e.HEIC": b"\0\0\0\x18ftypheic"}
    write_files(tmp_path, {**files, **{f"{name[0]}.TXT": "a caption" for name in files}, "sound.ogg": b"OggS"})
    assert outcomes(FolderSource(tmp_path)) == {"kept": 3, "unsupported_format": 2, "unknown_kind": 1}
    details = [sample.fault_detail for sample in read(FolderSource(tmp_path))[0] if sample.fault]
    assert details == ["SVG", "HEIC", ".ogg"]


def test_two_pictures_of_one_name_share_its_text(tmp_path):
    write_files(tmp_path, {"a.jpg": JPEG, "a.png": JPEG, "a.txt": "a cat", "b (1).jpg": JPEG, "b (1).jpg.txt": "a dog"})
    assert captions_of(tmp_path) == {"a.jpg": "a cat", "a.png": "a cat", "b (1).jpg": "a dog"}


def test_an_empty_text_gives_way_to_the_json_beside_it(tmp_path):
    write_files(tmp_path, {"a.jpg": JPEG, "a.txt": " \n", "a.json": '{"caption": "a cat"}', "b.jpg": JPEG, "b.txt": ""})
    assert captions_of(tmp_path) == {"a.jpg": "a cat", "b.jpg": ""}


@pytest.mark.parametrize(
    ("content", "caption", "reason"),
    [
        ("grün".encode("latin-1"), None, DropReason.UNREADABLE_TEXT),
        ("grün".encode("utf-16"), "grün", "kept"),
        (b"\x00" * 10, "", DropReason.EMPTY_CAPTION),
        (b"one\ntwo", "one\ntwo", DropReason.SEVERAL_LINES),
        ("x " * 2**20, ("x " * 2**15).strip(), DropReason.LONG_CAPTION),
    ],
)
def test_text_files_are_judged_one_by_one(tmp_path, content, caption, reason):
    write_files(tmp_path, {"a.jpg": JPEG, "a.txt": content})
    assert captions_of(tmp_path) == {"a.jpg": caption}
    assert outcomes(FolderSource(tmp_path)) == {reason: 1}


def test_tuxpaints_texts_are_captions_with_their_first_line(tmp_path):
    write_files(tmp_path, {"rat.png": JPEG, "rat.txt": "A rat.\nde.utf8=Eine Ratte.\nel.utf8=Ένας αρουραίος.\n"})
    assert captions_of(tmp_path, caption_lines="first") == {"rat.png": "A rat."}
    assert outcomes(FolderSource(tmp_path)) == {"several_lines": 1}


@needs_utf8_names
def test_links_pipes_and_locked_files_are_counted_and_wait_for_nobody(tmp_path):
    write_files(tmp_path, {f"{name}.txt": "a caption" for name in ("broken", "pipe", "whole")})
    (tmp_path / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "folder.jpg").mkdir()
    write_files(tmp_path, {"whole.jpg": JPEG, os.fsdecode(b"caf\xe9.jpg"): JPEG, os.fsdecode(b"caf\xe9.txt"): "a cup"})
    samples = {sample.key: sample for sample in read(FolderSource(tmp_path))[0]}
    assert {key: sample.fault for key, sample in samples.items()} == {
        "broken.jpg": DropReason.UNREADABLE_FILE,
        "caf\\xe9.jpg": None,
        "loop": DropReason.UNKNOWN_KIND,  # a link to what is read anyway
        "pipe.jpg": DropReason.UNREADABLE_FILE,
        "whole.jpg": None,
    }


def test_linked_folders_are_read_once_with_their_tables(tmp_path):
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    write_files(elsewhere, {"deep/b.jpg": JPEG, "deep/b.txt": "a dog", "c.jpg": JPEG})
    write_files(elsewhere, {"captions.csv": "file,text\nc.jpg,an owl\n"})
    write_files(source, {"own/a.jpg": JPEG, "own/a.txt": "a cat"})
    links = {
        **{source / "more": elsewhere, source / "again": elsewhere / "deep", source / "alias": source / "own"},
        **{elsewhere / "back": source, elsewhere / "up": tmp_path},
    }
    for link, target in links.items():
        link.symlink_to(target)
    samples = {sample.key: sample.caption or sample.fault_detail for sample in read(FolderSource(source))[0]}
    captions = {"own/a.jpg": "a cat", "again/b.jpg": "a dog", "more/c.jpg": "an owl"}
    is_link = dict.fromkeys(("alias", "more/back", "more/up"), "link to a folder that is read anyway")
    assert samples == captions | is_link


def test_pictures_that_vanish_while_they_are_read_are_counted(tmp_path):
    files = {".jpg": JPEG, ".txt": b"a caption"}
    write_files(tmp_path, {name + suffix: content for name in "abc" for suffix, content in files.items()})
    samples = FolderSource(tmp_path).samples()
    next(samples)
    for name in ("b.jpg", "c.txt"):
        (tmp_path / name).unlink()
    assert [(one.fault, one.fault_detail) for one in samples] == [
        (DropReason.UNREADABLE_FILE, "No such file or directory")
    ] * 2


def test_kept_and_dropped_are_all_pictures_and_what_is_left_over(tmp_path):
    write_files(
        tmp_path, {f"{index}.{suffix}": JPEG for index in range(30) for suffix in ("jpg", "gif")[: 1 + index % 2]}
    )
    write_files(tmp_path, {f"{index}.txt": "a caption" if index % 3 else "nan" for index in range(0, 40)})
    assert outcomes(FolderSource(tmp_path), FilterPolicy()) == {
        "kept": 30,
        "placeholder_caption": 19,
        "missing_image": 6,
    }
