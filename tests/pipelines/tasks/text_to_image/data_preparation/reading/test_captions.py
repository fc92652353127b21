"""Captions: cleaned without losing anything that is seen, and told from what only stands where a caption belongs."""

import time

import pytest

from pipelines.tasks.text_to_image.data_preparation.filtering import DropReason, FilterPolicy, drop_reason_of_caption
from pipelines.tasks.text_to_image.data_preparation.reading.captions import (
    clean_caption,
    decode_text,
    visible_length,
    words_of_name,
)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("a red star", "a red star"),
        ("  a\t red \u00a0 star\n", "a red star"),
        ("\ufeffa star", "a star"),
        ("a\u200b\u00ad st\u2060ar\u200e", "a star"),
        ("a\x00 star\x1b[31m", "a star[31m"),
        ("Tom &amp; Jerry &quot;live&quot;", 'Tom & Jerry "live"'),
        ("Tom &amp;amp; Jerry", "Tom & Jerry"),
        ("5 &#8364;&nbsp;each &#x1F600;", "5 € each 😀"),
        ("AT&T, R&notes &unknown; & &#0;", "AT&T, R&notes &unknown; & \N{REPLACEMENT CHARACTER}"),
        ("<b>bold</b> and <i class='x'>slanted</i>", "bold and slanted"),
        ("one<br/>line<p>of</p>text", "one line of text"),
        ("&lt;strong&gt;bold&lt;/strong&gt;", "bold"),
        ('<a href="https://example.org">a link</a>', "a link"),
        ("<PERSON> at the beach, 1 < 2 > 0, I <3 cats", "<PERSON> at the beach, 1 < 2 > 0, I <3 cats"),
        ("a lone \ud83d surrogate", "a lone surrogate"),
        ("cafe\u0301", "café"),
        ("👨\u200d👩\u200d👧 می\u200cخواهم", "👨\u200d👩\u200d👧 می\u200cخواهم"),
        ("\u3164\u2800 \u200d", ""),
        ("\u202eevil\u202c", "evil"),
        ("", ""),
    ],
)
def test_a_caption_is_cleaned_of_what_nobody_sees_or_means(raw, clean):
    assert clean_caption(raw, "drop") == clean


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\u2028", "\x85", "\v", "\n \n\t\n"])
def test_several_lines_are_the_publishers_choice(line_break):
    raw = f"{line_break}A rat.{line_break}de.utf8=Eine Ratte.{line_break}"
    assert clean_caption(raw, "drop") == "A rat.\nde.utf8=Eine Ratte."
    assert clean_caption(raw, "first") == "A rat."
    assert clean_caption(raw, "join") == "A rat. de.utf8=Eine Ratte."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_unicode_is_read_in_all_its_encodings(encoding):
    text = "A green bird: Wellensittich, grün"
    assert decode_text(text.encode(encoding)) == text


@pytest.mark.parametrize(
    "content", ["grün".encode("latin-1"), "тест".encode("cp1251"), b"\xff\xfe\x00", b"\x89PNG\r\n"]
)
def test_what_is_no_unicode_is_known(content):
    assert decode_text(content) is None


def test_a_text_cut_inside_a_character_is_read_up_to_it():
    assert decode_text(("é" * 40_000 + "x").encode()) == "é" * 32768
    assert decode_text(("x" + "é" * 40_000).encode()).rstrip("é") == "x"


@pytest.mark.parametrize(
    ("caption", "reason"),
    [
        ("a red star", None),
        (None, DropReason.MISSING_CAPTION),
        ("", DropReason.EMPTY_CAPTION),
        ("ab", DropReason.SHORT_CAPTION),
        ("猫", DropReason.SHORT_CAPTION),
        ("🐈🐈", None),
        ("黒猫", None),
        ("🐈", DropReason.SHORT_CAPTION),
        ("ox 🐂", None),
        ("e" + "\u0301" * 50, DropReason.SHORT_CAPTION),
        ("x" * 2000, None),
        ("x" * 2001, DropReason.LONG_CAPTION),
        ("one\ntwo", DropReason.SEVERAL_LINES),
        *(
            (word, DropReason.PLACEHOLDER_CAPTION)
            for word in ("nan", "None", "NULL", "n/a", "[no caption]", "untitled")
        ),
        *((dots, DropReason.PLACEHOLDER_CAPTION) for dots in ("...", "-----", "?", "12345", "* * *", "\u2026")),
        *(
            (word, DropReason.PLACEHOLDER_CAPTION)
            for word in ("#REF!", "[object Object]", "Lorem ipsum dolor sit amet")
        ),
        *((word, DropReason.PLACEHOLDER_CAPTION) for word in ("Image", "photo:", "True")),
        *((name, DropReason.FILE_NAME_CAPTION) for name in ("IMG_2019.jpg", "DSC00042", "a cat.PNG", "Scan 0007")),
        *((name, DropReason.FILE_NAME_CAPTION) for name in ("d41d8cd98f00b204e9800998ecf8427e", "PXL_20210203_1.jpg")),
        ("123e4567-e89b-12d3-a456-426614174000", DropReason.FILE_NAME_CAPTION),
        *((url, DropReason.URL_CAPTION) for url in ("https://a.org/b.jpg", "www.a.org", "HTTP://A.ORG", "data:a/b;x")),
        *((text, DropReason.LIST_CAPTION) for text in ("['a cat', 'a dog']", '["a"]', "{'en': 'a cat'}", "[]", "{}")),
        *(
            (text, DropReason.LIST_CAPTION)
            for text in ("b'a cat'", "('a', 'b')", r"{\rtf1\ansi a cat}", '{"caption": "a"}', "['a' 'b']")
        ),
        ("None of us at the beach", None),
        ("Nana", None),
        ("an image of a cat", None),
        ("a cat, see https://a.org", None),
        ("[Untitled drawing] of a (very) small cat", None),
        ("I saved it as cat.jpg", None),
        ("the file that I took at home is a.jpg", None),
        ("'quoted'", None),
        ("deadbeef", None),
    ],
)
def test_captions_that_say_nothing_are_told_from_short_and_odd_ones(caption, reason):
    if caption == "I saved it as cat.jpg":
        reason = DropReason.FILE_NAME_CAPTION  # up to five blanks: files have such names
    assert drop_reason_of_caption(caption, FilterPolicy()) is reason


@pytest.mark.parametrize(
    ("path", "name", "folder", "both"),
    [
        ("birds/house-sparrow_02", "house sparrow", "birds", "birds, house sparrow"),
        ("HouseSparrow (3)", "House Sparrow", "", "House Sparrow"),
        ("animals/red.fox/0001", "", "red fox", "animals, red fox"),
        ("a/2019/IMG_2019", "", "", "a"),
        ("icons/terminal-64x64", "terminal", "icons", "icons, terminal"),
        ("robots/r2d2-mp3/walk-ne12 (4)", "walk ne12", "r2d2 mp3", "robots, r2d2 mp3, walk ne12"),
        ("big ants2/fire-ant-flame10", "fire ant flame", "big ants2", "big ants2, fire ant flame"),
        ("roads/route66", "route66", "roads", "roads, route66"),
        ("été_à_la-mer/Boeing 747", "Boeing", "été à la mer", "été à la mer, Boeing"),
    ],
)
def test_names_of_files_and_folders_say_what_is_in_a_picture(path, name, folder, both):
    assert [words_of_name(path, chosen) for chosen in ("name", "folder", "path")] == [name, folder, both]


def test_placeholders_can_be_kept():
    policy = FilterPolicy(keep_placeholders=True)
    assert [drop_reason_of_caption(caption, policy) for caption in ("nan", "IMG_1.jpg", "['a']")] == [None] * 3


def test_emoji_and_ideographs_count_two():
    assert [visible_length(text) for text in ("ab", "猫", "🐈", "é", "e\u0301", "👍🏽", "한")] == [2, 2, 2, 1, 1, 4, 2]


@pytest.mark.parametrize(
    "text", ["a" * 2**20, "<" * 2**20, "&" * 2**20, " \n" * 2**19, "[" * 2**20, "é\u200b" * 2**19, "['" * 2**19]
)
def test_a_megabyte_of_text_costs_no_time(text):
    begin = time.process_time()
    for caption_lines in ("drop", "first", "join"):
        drop_reason_of_caption(clean_caption(text, caption_lines), FilterPolicy())
    decode_text(text.encode())
    assert time.process_time() - begin < 1
