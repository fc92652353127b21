"""Programs on this machine get pictures over HTTP; pages in a browser, and who has no key, get nothing."""

import base64
import io
import json
import stat

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from pipelines.features.serving.draw.http.application import (
    MOST_BODY_BYTES,
    REQUESTS_PER_MINUTE,
    build_application,
    key_in,
)
from pipelines.features.serving.draw.http.text_answers import WrittenText, WrittenTexts

KEY = "the-key"
GOOD = {"authorization": f"Bearer {KEY}", "host": "127.0.0.1:8080"}
PATH = "/v1/images/generations"


@pytest.fixture
def asked():
    return []


@pytest.fixture
def client(asked):
    def pictures(request):
        asked.append(request)
        return [b"png"] * request.number

    def texts(request):
        asked.append(request)
        yield WrittenTexts(num_prompt_tokens=3, texts=())
        for length, is_last in ((3, False), (6, True)):
            reasons = [("stop" if n else "length") if is_last else None for n in range(request.number)]
            own = [WrittenText(text=" sings"[:length], num_tokens=length // 3, finish_reason=why) for why in reasons]
            yield WrittenTexts(num_prompt_tokens=3, texts=own)

    both = dict(pictures=pictures, texts=texts)
    with TestClient(build_application("org/birds", KEY, **both, clock=lambda: 6000.0)) as client:
        yield client


def test_pictures_are_returned_as_base64(client, asked):
    body = dict(prompt="a robin", n=2, seed=5, temperature=0.5, top_k=16, model="any", size="256x256")
    answer = client.post(PATH, json=body, headers=GOOD)
    assert answer.json() == dict(created=6000, data=[dict(b64_json=base64.b64encode(b"png").decode())] * 2)
    (request,) = asked
    assert (request.prompt, request.number, request.seed) == ("a robin", 2, 5)
    assert (request.options.temperature, request.options.top_k) == (0.5, 16)
    assert client.get("/v1/models", headers=GOOD).json()["data"][0]["id"] == "org/birds"


WAYS = {
    PATH: dict(prompt="a robin"),
    "/v1/completions": dict(prompt="a robin"),
    "/v1/chat/completions": dict(messages=[dict(role="user", content="a robin")]),
}


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (dict(authorization="Bearer another"), 401),
        (dict(authorization=""), 401),
        (dict(authorization=f"Basic {KEY}"), 401),
        (dict(authorization="Bearer schlüssel".encode()), 401),
        (dict(host="evil.example"), 403),
        (dict(host="evil.example:8080"), 403),
        (dict(host="127.0.0.1.evil.example"), 403),
        (dict(host="localhost:8080"), 200),
        (dict(host="[::1]:8080"), 200),
        (dict(origin="https://evil.example"), 403),
        (dict(origin="null"), 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"content-type": "text/plain"}, 400),
    ],
    ids=str,
)
def test_who_may_ask(client, asked, path, headers, status):
    sent = {**GOOD, "content-type": "application/json", **headers}
    answer = client.post(path, content=json.dumps(WAYS[path]), headers=sent)
    assert answer.status_code == status and len(asked) == (status == 200)
    assert status == 200 or answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "changes",
    [
        dict(prompt=""),
        dict(prompt=5),
        dict(prompt="  "),
        dict(prompt="\ud800"),
        dict(top_k=10**400),
        dict(prompt="x" * 5000),
        dict(n=0),
        dict(n=17),
        dict(n=True),
        dict(seed=2**63),
        dict(temperature=-1),
        dict(temperature="hot"),
        dict(top_p=2),
        dict(top_k=2**40),
        dict(response_format="url"),
        dict(window=3),
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_what_makes_no_sense_is_refused_with_a_reason(client, asked, changes):
    body = json.dumps(dict(prompt="a robin") | changes)
    answer = client.post(PATH, content=body, headers={**GOOD, "content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error" and not asked


@pytest.mark.parametrize(
    ("content", "status"), [(b"[]", 400), (b"{", 400), (b"[" * 5000, 400), (b" " * (MOST_BODY_BYTES + 1), 413)]
)  # fmt: skip
def test_bodies_that_are_no_request(client, asked, content, status):
    answer = client.post(PATH, content=content, headers={**GOOD, "content-type": "application/json"})
    assert answer.status_code == status and not asked


def test_too_many_requests_are_refused(client):
    statuses = [client.get("/v1/models", headers=GOOD).status_code for _ in range(REQUESTS_PER_MINUTE + 1)]
    assert statuses == [200] * REQUESTS_PER_MINUTE + [429]


def test_a_key_is_made_once_and_is_its_owners(tmp_path):
    path = tmp_path / "serving" / "http.key"
    key = key_in(path)
    assert len(key) >= 32 and key_in(path) == key and stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("\n")
    with pytest.raises(ValueError, match="is empty"):
        key_in(path)


def test_texts_are_answered_as_programs_expect_them(client, asked):
    body = dict(prompt=["a robin"], n=2, max_tokens=2, stop=".", temperature=0, stream=False, logprobs=None, user="me")
    answer = client.post("/v1/completions", json=body, headers=GOOD).json()
    assert answer.pop("id").startswith("cmpl-")
    choices = [
        dict(index=n, text=" sings", logprobs=None, finish_reason=reason) for n, reason in enumerate(("length", "stop"))
    ]
    usage = dict(prompt_tokens=3, completion_tokens=4, total_tokens=7)
    known = dict(object="text_completion", created=6000, model="org/birds")
    assert answer == known | dict(choices=choices, usage=usage)
    (request,) = asked
    assert (request.prompt, request.number, request.stops, request.messages) == ("a robin", 2, (".",), ())
    assert (request.options.temperature, request.options.num_image_codes) == (0, 2)

    messages = [dict(role="system", content="Sing."), dict(role="user", content=[dict(type="text", text="Now.")])]
    answer = client.post("/v1/chat/completions", json=dict(messages=messages), headers=GOOD).json()
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["choices"][0]["message"] == dict(role="assistant", content=" sings")
    assert [(one.role, one.content) for one in asked[1].messages] == [("system", "Sing."), ("user", "Now.")]


@pytest.mark.parametrize("path", [path for path in WAYS if path != PATH])
def test_texts_come_piece_by_piece_if_that_is_asked_for(client, path):
    body = WAYS[path] | dict(stream=True, stream_options=dict(include_usage=True), n=2)
    answer = client.post(path, json=body, headers=GOOD)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *lines, end = answer.text.strip().split("\n\n")
    *pieces, usage = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert end == "data: [DONE]" and usage["choices"] == [] and usage["usage"]["completion_tokens"] == 4
    for index, reason in enumerate(("length", "stop")):
        own = [choice for piece in pieces for choice in piece["choices"] if choice["index"] == index]
        assert "".join(one["delta"]["content"] if "chat" in path else one["text"] for one in own) == " sings"
        assert [one["finish_reason"] for one in own] == [None, reason]


@pytest.mark.parametrize(
    "changes",
    [
        dict(prompt=""),
        dict(prompt=["a", "b"]),
        dict(prompt=[1, 2]),
        dict(prompt="\ud800"),
        dict(stop="\ud800"),
        dict(top_k=10**400),
        dict(prompt="x" * 2**15 + "x"),
        dict(max_tokens=0),
        dict(max_tokens=2**20),
        dict(max_tokens=1.5),
        dict(n=17),
        dict(seed="one"),
        dict(stop=5),
        dict(stop=["a"] * 5),
        dict(stop=[""]),
        dict(stop=["x" * 65]),
        dict(stream="yes"),
        dict(stream_options=dict(include_usage=5)),
        dict(echo=True),
        dict(logprobs=5),
        dict(presence_penalty=1.0),
        dict(temperature=float("inf")),
        dict(top_k=True),
        dict(messages=[]),
        dict(guidance_scale=2),
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_a_completion_that_makes_no_sense_is_refused_with_a_reason(client, asked, changes):
    body = json.dumps(dict(prompt="a robin") | changes)
    answer = client.post("/v1/completions", content=body, headers={**GOOD, "content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["message"] and not asked


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hello",
        [None],
        [dict(role="user")],
        [dict(role="tool", content="x")],
        [dict(role="user", content=5)],
        [dict(role="user", content="\ud800")],
        [dict(role="user", content=[dict(type="image_url", image_url="http://x")])],
        [dict(role="user", content="x" * 2**15 + "x")],
        [dict(role="user", content="x")] * 129,
    ],
    ids=lambda messages: str(messages)[:40],
)
def test_messages_that_are_none_are_refused(client, asked, messages):
    body = json.dumps(dict(messages=messages))
    sent = {**GOOD, "content-type": "application/json"}
    answer = client.post("/v1/chat/completions", content=body, headers=sent)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error" and not asked


@pytest.mark.parametrize("path", WAYS)
def test_a_run_that_does_something_else_says_where_to_ask(path):
    draws = path == PATH
    own = dict(texts=None) if not draws else dict(pictures=None)
    with TestClient(build_application("org/birds", KEY, **own)) as client:
        answer = client.post(path, json=WAYS[path], headers=GOOD)
    assert answer.status_code == 404
    assert ("writes texts: POST /v1/completions" if draws else "POST /v1/images") in answer.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(300)
def test_a_program_gets_what_the_run_draws(hub, commands, tmp_path):
    """OpenAI's interface of a real server, beside the pictures of `generate`."""
    import httpx2
    from drawn_runs import drawn_run

    with drawn_run(hub, tmp_path, "local-run") as run:
        ready = run.serve("--http", 0).wait_for("http")
        from pathlib import Path

        headers = {"authorization": f"Bearer {Path(ready['key_file']).read_text().strip()}"}
        body = dict(prompt="a small red star", n=2, seed=3)
        answer = httpx2.post(f"{ready['address']}{PATH}", json=body, headers=headers, timeout=60)
        pictures = [Image.open(io.BytesIO(base64.b64decode(one["b64_json"]))) for one in answer.json()["data"]]
        words = (
            "generate",
            run.name,
            "a small red star",
            "--candidates",
            2,
            "--keep",
            2,
            "--seed",
            3,
            "--device",
            "cpu",
        )
        drawn = commands.run(*words, "--json", "--pictures", "drawn", folder=tmp_path)
        ranked = json.loads(drawn.stdout)["pictures"]
        for one in ranked:
            with Image.open(tmp_path / one["file"]) as expected:
                assert pictures[one["candidate"]].tobytes() == expected.tobytes()
        assert httpx2.post(f"{ready['address']}{PATH}", json=body, timeout=60).status_code == 401
