"""Texts for programs on this machine are those that others get, up to where the program wants them to stop."""

import threading

import pytest
import torch
from drawn_runs import write_language_folder

from modeling_dalle_collab.sampling_dalle_collab import SamplingOptions
from pipelines.features.serving.draw.checkpoints import ServedCheckpoints, load_served
from pipelines.features.serving.draw.engine import DrawEngine
from pipelines.features.serving.draw.evidence import drawn_here
from pipelines.features.serving.draw.http.local_drawing import MOST_AT_ONCE, LocalDrawing
from pipelines.features.serving.draw.http.refused import RefusedRequestError
from pipelines.features.serving.draw.http.text_answers import certain_part, until_stop
from pipelines.features.serving.draw.http.text_requests import TextRequest
from pipelines.features.serving.draw.modalities.texts import TEXTS, finished_text
from pipelines.features.serving.draw.requests import SamplingRequest

TEMPLATE = (
    "{% for message in messages %}{% if message['content'] == 'forbidden' %}{{ raise_exception('No.') }}{% endif %}"
    "<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("language")
    write_language_folder(folder, "text-generation")
    return load_served(folder / "run", "org/gpt", TEXTS, precision="float32", device="cpu")


@pytest.fixture
def engine():
    with DrawEngine() as engine:
        yield engine


@pytest.fixture
def local(checkpoint, engine):
    return LocalDrawing(ServedCheckpoints(checkpoint, "float32"), engine)


def asked(prompt="The old house", *, messages=None, **values):
    own = dict(prompt=prompt) if messages is None else dict(messages=messages)
    return TextRequest.from_mapping(own | values, is_chat=messages is not None)


def written(local, request):
    *steps, last = local.texts(request)
    assert steps[0].texts == ()
    for step in steps:
        assert all(end.text.startswith(text.text) for text, end in zip(step.texts, last.texts, strict=False))
    return last


def expected(checkpoint, ids, number, num_tokens, seed=0, **options):
    """Return the texts that this machine writes behind some ids."""
    own = dict(revision="", precision="", tokenizer="", input_ids=ids, seed=seed)
    sampling = SamplingRequest(**own, options=SamplingOptions(num_image_codes=num_tokens, **options))
    model = checkpoint.parts.model
    rows = drawn_here(model, sampling, range(number))
    return [finished_text(checkpoint.parts.processor, row, model.config) for row in rows]


def test_texts_are_those_that_this_machine_writes(checkpoint, local):
    found = written(local, asked(n=3, max_tokens=20, seed=5, top_k=20))
    ids = TEXTS.ids_of(checkpoint.parts.processor, "The old house")
    own = expected(checkpoint, ids, 3, 20, seed=5, top_k=20)
    assert [text.text for text in found.texts] == [text.text for text in own]
    assert [text.num_tokens for text in found.texts] == [text.num_tokens for text in own]
    assert found.num_prompt_tokens == ids.shape[1]
    assert [text.finish_reason == "stop" for text in found.texts] == [text.has_ended for text in own]


def test_a_text_ends_in_front_of_a_stop(local):
    (whole,) = written(local, asked(max_tokens=30, seed=1)).texts
    stop = whole.text[5:8]
    (cut,) = written(local, asked(max_tokens=30, seed=1, stop=["not in it", stop])).texts
    assert cut.text == whole.text[: whole.text.find(stop)] and cut.finish_reason == "stop"
    assert until_stop("abcabc", ["c", "bc"]) == ("a", True) and until_stop("abc", []) == ("abc", False)
    assert certain_part("abc<", ["<end>", "xyz"]) == "abc" and certain_part("abc\ufffd", []) == "abc"


def test_who_stops_reading_stops_the_writing(local, engine):
    steps = local.texts(asked(max_tokens=30))
    next(steps)
    next(steps)
    steps.close()
    assert len(written(local, asked(max_tokens=2)).texts) == 1
    assert engine.num_drawn == 1


def test_a_prompt_that_leaves_no_room_is_refused_and_a_long_sampling_is_cut(checkpoint, local):
    with pytest.raises(RefusedRequestError, match=r"The prompt has \d+ tokens; this model reads 64 in all."):
        written(local, asked("the old house " * 40))
    (text,) = written(local, asked(max_tokens=4000, seed=2)).texts
    assert text.num_tokens <= 64


def test_a_chat_is_written_behind_the_runs_template(checkpoint, local):
    tokenizer = checkpoint.parts.processor
    messages = [dict(role="user", content="Hello")]
    with pytest.raises(RefusedRequestError, match=r"has no chat template.*POST /v1/completions") as refused:
        written(local, asked(messages=messages))
    assert refused.value.status == 400
    tokenizer.chat_template = TEMPLATE
    try:
        (text,) = written(local, asked(messages=messages, max_tokens=8)).texts
        ids = torch.tensor([tokenizer("<user>Hello\n<assistant>", add_special_tokens=False)["input_ids"]])
        assert text.text == expected(checkpoint, ids, 1, 8, top_k=0)[0].text
        with pytest.raises(RefusedRequestError, match=r"The run's chat template refuses these messages: No\."):
            written(local, asked(messages=[dict(role="user", content="forbidden")]))
    finally:
        tokenizer.chat_template = None


def test_only_some_requests_are_answered_at_once(local, engine):
    engine.pause(True)
    waiting = [threading.Thread(target=written, args=(local, asked(max_tokens=2))) for _ in range(MOST_AT_ONCE)]
    for thread in waiting:
        thread.start()
    while sum(map(len, engine._waiting.values())) < MOST_AT_ONCE:
        threading.Event().wait(0.01)
    with pytest.raises(RefusedRequestError, match="try later"):
        written(local, asked(max_tokens=2))
    engine.pause(False)
    for thread in waiting:
        thread.join(60)
    assert len(written(local, asked(max_tokens=2)).texts) == 1
