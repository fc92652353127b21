"""Who watches a drawing sees previews, may stop it, and gets the pictures that drawing at once would give."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from PIL import Image

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.tasks.text_to_image.generation.generation_options import GenerationOptions
from pipelines.tasks.text_to_image.generation.image_generation import load_text_to_image
from pipelines.tasks.text_to_image.generation.progressive_drawing import Drawing, Preview, draw_progressively
from pipelines.tasks.text_to_image.generation.text_to_image import encode_upper_part, generate_images_for_prompts
from pipelines.tools.pages.drawing.drawing_desk import DrawingDesk
from pipelines.tools.pages.drawing.published_checkpoints import PublishedCheckpoints

OPTIONS = GenerationOptions(num_candidates=6, keep=3, seed=5, batch_size=4, sampling=SamplingOptions(top_k=8))


@pytest.fixture(scope="module")
def bundle(tiny_run):
    return load_text_to_image(tiny_run)


@pytest.fixture
def desk(tiny_run):
    return DrawingDesk(PublishedCheckpoints(str(tiny_run)), max_candidates=8)


def drawn(bundle, **options):
    return list(draw_progressively(bundle, "a red star", dataclasses.replace(OPTIONS, **options)))


@pytest.mark.parametrize("batch_size", [2, 4, 64])
def test_the_pictures_are_those_of_drawing_at_once(bundle, batch_size):
    *_, drawing = drawn(bundle, batch_size=batch_size)
    expected = generate_images_for_prompts(bundle, ["a red star"], OPTIONS)[0]
    assert [picture.candidate_index for picture in drawing.pictures] == [each.candidate_index for each in expected]
    for picture, other in zip(drawing.pictures, expected, strict=True):
        assert torch.equal(picture.image_codes, other.image_codes)
    decoded = bundle.codec.decode(torch.stack([each.image_codes for each in expected]))
    np.testing.assert_allclose(drawing.picture_embeddings, bundle.reranker.image_embeddings(decoded), atol=1e-5)
    assert drawing.seconds > 0 and drawing.share_drawn == 1


def test_previews_come_on_the_way_and_are_grey_where_nothing_is_drawn(bundle):
    *previews, drawing = drawn(bundle)
    assert isinstance(drawing, Drawing) and all(isinstance(preview, Preview) for preview in previews)
    assert [preview.num_done for preview in previews] == [*range(8, 65, 8), *range(68, 97, 4)]
    assert {preview.num_total for preview in previews} == {96}
    half = np.asarray(previews[3].pictures[0])
    assert (half[8:] == 128).all() and not (half[:8] == 128).all()
    assert len(previews[0].pictures) == 4 and previews[-1].pictures is None


def test_who_stops_watching_stops_the_drawing(bundle):
    stream = draw_progressively(bundle, "a red star", OPTIONS)
    assert isinstance(next(stream), Preview)
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)


def test_a_given_upper_part_is_kept(bundle):
    picture = Image.effect_mandelbrot((30, 20), (-2, -1, 1, 1), 9).convert("RGB")
    given = encode_upper_part(bundle.codec, picture, 2)
    *_, drawing = draw_progressively(bundle, "a star", OPTIONS, image_prompt=given)
    assert all(torch.equal(each.image_codes[:8], given) for each in drawing.pictures)
    assert drawing.share_drawn == 0.5


def test_the_desk_shows_pictures_a_link_and_the_time(desk):
    assert "not known yet" in desk.speed.sentence(8)
    shown = list(desk.draw(dict(prompt="a red star " * 9, candidates=4, keep=2, seed=3)))
    assert shown[0].message == "Loading the checkpoint ..." and "left." in shown[1].message
    assert re.match(r"The best 2 of 4 candidates, best first. Drawn by the checkpoint in \d+ s\.", shown[-1].message)
    assert "too long: the model did not read its last " in shown[-1].message
    assert "seed=3" in shown[-1].query and shown[-1].seen is None
    assert re.match(r"8 candidates will take about \d+ s here \(cpu\): ", desk.speed.sentence(8))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(prompt=" "), "Prompt 1 of 1 is empty"),
        (dict(prompt="a" * 10_001), "The prompt has 10,001 characters, expected text of at most 10,000. Shorten it."),
        (dict(prompt="a", candidates=0), "0 candidates were requested: expected at least 1."),
        (dict(prompt="a", candidates=9), "9 candidates were requested, this page draws at most 8."),
        (dict(prompt="a", candidates=4, seed=None), "seed is 'None', expected a whole number."),
        (
            dict(prompt="a", candidates=4, checkpoint="epoch-3"),
            "This page draws from a folder, which has no",
        ),
        (dict(prompt="a", candidates=4, checkpoint="../../x"), "There is no checkpoint '../../x': expected newest,"),
    ],
)
def test_what_cannot_be_drawn_is_a_message(desk, values, message):
    *_, shown = desk.draw(values)
    assert shown.message.startswith(message) and not shown.pictures and not shown.drawn


def test_bad_pictures_to_complete_are_a_message(desk, tmp_path):
    (tmp_path / "a.png").write_text("no picture")
    Image.effect_noise((64, 64), 90).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:900])
    Image.new("1", (10_000, 5_001)).save(tmp_path / "large.png")
    for name, rows, message in (
        ("a.png", 0, "a.png is not a picture that can be read. Expected JPEG, PNG or WebP."),
        ("cut.png", 0, "cut.png is a damaged picture"),
        ("large.png", 0, "large.png has 10000 x 5001 pixels, expected at most 25 million. Make it smaller."),
        ("whole.png", 4, "Cannot keep 4 rows of the picture, expected 1 to 3."),
        ("whole.png", -1, "Cannot keep -1 rows of the picture"),
    ):
        *_, shown = desk.draw(dict(prompt="a", candidates=2, keep=1), str(tmp_path / name), rows)
        assert shown.message.startswith(message)
    *_, shown = desk.draw(dict(prompt="a", candidates=2, keep=1), str(tmp_path / "whole.png"), 0)
    assert shown.link_message == "The link does not include the picture that was completed."
