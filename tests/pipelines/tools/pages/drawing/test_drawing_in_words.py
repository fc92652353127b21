"""What the page says about a drawing, and what it keeps of a session."""

import zipfile

import pytest
from tiny_run_parts import write_tiny_run

from pipelines.tools.pages.drawing.caption_words import remark_on, words_of
from pipelines.tools.pages.drawing.drawing_desk import DrawingDesk, Shown, rank_in_words
from pipelines.tools.pages.drawing.drawing_request import DrawingRequest
from pipelines.tools.pages.drawing.kept_drawings import MOST_KEPT, KeptDrawing, with_newest, zipped
from pipelines.tools.pages.drawing.published_checkpoints import PublishedCheckpoints

KNOWN = {"red", "star", "звезда"}


@pytest.mark.parametrize(
    ("rank", "number", "said"),
    [
        (1, 8, "best match of 8"),
        (2, 8, "2nd of 8"),
        (11, 16, "11th of 16"),
        (21, 64, "21st of 64"),
        (1, 1, "the only one drawn"),
    ],
)
def test_a_picture_is_told_by_its_rank(rank, number, said):
    assert rank_in_words(rank, number) == said


@pytest.mark.parametrize(
    ("prompt", "unknown"),
    [
        ("A red STAR!", []),
        ("a cat & a dog, a cat", ["cat", "dog"]),
        ("красная звезда 12", ["красная"]),
        ("鳥のいる風景", []),  # no spaces between words: nothing can be said
    ],
)
def test_words_that_no_caption_has_are_found_in_scripts_with_capitals(prompt, unknown):
    assert words_of(prompt, KNOWN) == unknown


def test_a_remark_is_mild_and_says_what_was_read():
    assert remark_on([], 9, is_all=True) == ""
    assert remark_on(["cat"], 9, is_all=True) == (
        "No training caption has the word “cat”: the model can only guess what it means."
    )
    assert remark_on(["ab", "cd", "ef", "gh"], 200_000, is_all=False) == (
        "None of 200,000 training captions has the words “ab”, “cd”, “ef” and 1 more word: "
        "the model can only guess what they mean."
    )


def test_a_variation_keeps_the_upper_half_of_the_codes_and_draws_the_rest_anew(tmp_path):
    desk = DrawingDesk(PublishedCheckpoints(str(write_tiny_run(tmp_path))), max_candidates=4)
    asked = dict(prompt="a red star", candidates=2, keep=2)
    *_, first = desk.draw(asked)
    *_, varied = desk.draw(dict(asked, seed=1), varied=first.codes[1])
    halves = [first.codes[1][:8].tolist()] * 2
    assert [codes[:8].tolist() for codes in varied.codes] == halves
    assert [codes[8:].tolist() for codes in varied.codes] != [first.codes[1][8:].tolist()] * 2
    assert varied.link_message == "The link does not include the picture that was varied."


def drawing(folder, number):
    file = folder / f"{number}.png"
    file.write_bytes(b"picture %d" % number)
    request = DrawingRequest(prompt="../A <b>star</b>, please: " * 9, seed=number)
    return KeptDrawing(shown=Shown(message="Drawn.", request=request), files=[(str(file), "best match of 1")])


def test_a_session_keeps_its_newest_drawings_that_are_still_there(tmp_path):
    kept = ()
    for number in range(MOST_KEPT + 3):
        kept = with_newest(kept, drawing(tmp_path, number))
    assert [one.request.seed for one in kept] == list(range(MOST_KEPT + 2, 2, -1))
    (tmp_path / "7.png").unlink()
    assert 7 not in [one.request.seed for one in with_newest(kept, drawing(tmp_path, 99))]


def test_all_pictures_are_in_one_file_under_harmless_names(tmp_path):
    path = zipped(drawing(tmp_path, 3), tmp_path)
    assert path.name == "a-b-star-b-please-a-b-star-b-please-a-b-seed-3.zip"
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["a-b-star-b-please-a-b-star-b-please-a-b-1.png", "about.txt"]
        assert archive.read(archive.namelist()[0]) == b"picture 3"
