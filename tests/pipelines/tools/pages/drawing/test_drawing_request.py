"""A link asks for what was drawn, in any script; what somebody else wrote into it is checked."""

from urllib.parse import parse_qsl

import pytest

from pipelines.tools.pages.drawing.drawing_request import DrawingRequest
from pipelines.tools.pages.drawing.drawing_speed import DrawingSpeed, TimedDrawing


@pytest.mark.parametrize("prompt", ["a red star", "маленькая звезда", "<b>&?#=%", "鳥 🐦", " two\nlines "])
def test_a_link_gives_back_the_request(prompt):
    request = DrawingRequest(prompt=prompt, candidates=7, top_p=0.75, seed=2**70 + 1, checkpoint="a" * 40)
    assert DrawingRequest.from_query(dict(parse_qsl(request.to_query()))) == request


def test_a_link_has_the_prompt_the_seed_and_what_is_not_the_default():
    assert DrawingRequest(prompt="a red star", seed=7).to_query() == "prompt=a+red+star&seed=7"
    assert DrawingRequest(prompt="a", keep=2, checkpoint="epoch-12").to_query() == (
        "prompt=a&keep=2&seed=0&checkpoint=epoch-12"
    )


def test_what_a_link_leaves_out_has_its_default_and_foreign_parameters_are_left_alone():
    assert DrawingRequest.from_query({"__theme": "dark"}) is None
    assert DrawingRequest.from_query({"checkpoint": "epoch-300"}) == DrawingRequest(prompt="", checkpoint="epoch-300")
    assert DrawingRequest.from_query({"prompt": "a", "seed": "-3", "view": "api"}) == DrawingRequest(
        prompt="a", seed=-3
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"seed": "one"}, "seed is 'one', expected a whole number."),
        ({"keep": "2.5"}, "keep is '2.5', expected a whole number."),
        ({"top_p": "nan"}, "top p is 'nan', expected a number."),
        ({"temperature": "inf"}, "temperature is 'inf'"),
        ({"candidates": "1e999"}, "candidates is '1e999'"),
        ({"checkpoint": "refs/pr/1"}, "There is no checkpoint 'refs/pr/1': expected newest, a tag such as epoch-300"),
        ({"prompt": "a" * 10_001}, "The prompt has 10,001 characters"),
    ],
)
def test_a_wrong_link_is_refused(query, message):
    with pytest.raises(ValueError, match=message):
        DrawingRequest.from_query({"prompt": "a"} | query)


def test_a_prompt_that_is_too_long_for_an_address_gets_no_link():
    with pytest.raises(ValueError, match=r"The prompt is too long for a link: 18,\d+ of 6,000 characters."):
        DrawingRequest(prompt="д" * 3000).to_query()


def test_time_is_told_from_the_last_drawings():
    speed = DrawingSpeed("cpu")
    for seconds, candidates in ((1e6, 1), (10, 5), (30, 5), (40, 20), (20, 10), (20, 10)):
        speed.record(TimedDrawing(seconds=seconds, num_candidates=candidates))
    assert speed.seconds_per_candidate() == pytest.approx((10 + 30 + 40 + 20 + 20) / (5 + 5 + 20 + 10 + 10))
    assert speed.sentence(32) == "32 candidates will take about 77 s here (cpu): 2.4 s each in the last 5 drawings."
    assert speed.sentence(100, is_guided=True).startswith("100 candidates will take about 8 min")
    half = TimedDrawing(seconds=3, num_candidates=2, is_guided=True, share_drawn=0.5)
    assert half.work == 2
