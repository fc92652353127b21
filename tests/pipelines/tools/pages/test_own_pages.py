"""Which requests a page's program answers, by the names that a browser puts into them."""

import pytest

from pipelines.tools.pages.own_pages import own_pages_only, refusal

HOME = {}
PROXIED = {"GRADIO_ROOT_PATH": "https://my-page.example/join"}
ON_HUB = {"SPACE_ID": "alice/join", "SPACE_HOST": "alice-join.hf.space"}


@pytest.mark.parametrize(
    ("host", "origin", "environment"),
    [
        ("127.0.0.1:7860", None, HOME),
        ("127.0.0.1:7860", "http://127.0.0.1:7860", HOME),
        ("localhost:7860", "http://localhost:7860", HOME),
        ("[::1]:7860", "http://[::1]:7860", HOME),
        ("192.168.1.5:7860", "http://192.168.1.5:7860", HOME),
        ("workstation:7860", "http://workstation:7860", HOME),
        ("workstation.local:7860", None, HOME),
        ("my-page.example", "https://my-page.example", PROXIED),
        ("127.0.0.1:7860", "https://my-page.example", PROXIED),
        ("127.0.0.1:7860", "http://127.0.0.1:7860", PROXIED),
        ("alice-join.hf.space", "https://alice-join.hf.space", ON_HUB),
        ("10.0.0.7:7860", "https://alice-join.hf.space", ON_HUB),
        ("anything.example", None, ON_HUB),
    ],
)
def test_a_page_itself_and_programs_are_answered(host, origin, environment):
    assert refusal(host, origin, environment) == ""


@pytest.mark.parametrize(
    ("host", "origin", "environment", "said"),
    [
        ("evil.example:7860", None, HOME, "asked for as 'evil.example:7860'"),
        ("evil.example:7860", "http://evil.example:7860", HOME, "asked for as"),
        ("127.0.0.1.evil.example", None, HOME, "asked for as"),
        ("localhost.evil.example:7860", None, HOME, "asked for as"),
        ("evil.example.:7860", None, HOME, "asked for as"),
        ("evil.example:7860", None, PROXIED, "asked for as"),
        ("", None, HOME, "asked for as"),
        ("[::1", None, HOME, "asked for as"),
        ("localhost:7860", "http://evil.example", HOME, "from 'http://evil.example', another page"),
        ("localhost:7860", "http://localhost:3000", HOME, "another page"),
        ("localhost:7860", "null", HOME, "another page"),
        ("localhost:7860", "", HOME, "another page"),
        ("localhost:7860", "http://[", HOME, "another page"),
        ("localhost:7860", "http://\x1b[31m", HOME, "another page"),
        ("alice-join.hf.space", "https://evil.example", ON_HUB, "another page"),
        ("alice-join.hf.space", "https://mallory-join.hf.space", ON_HUB, "another page"),
        ("alice-join.hf.space", "null", ON_HUB, "another page"),
    ],
)
def test_other_pages_and_names_that_a_stranger_may_own_are_refused(host, origin, environment, said):
    reason = refusal(host, origin, environment)
    assert said in reason and "\x1b" not in reason and "\n" not in reason


def test_on_the_hub_other_pages_may_use_what_has_no_login():
    assert own_pages_only(ON_HUB)["middleware"] == []
    assert len(own_pages_only(ON_HUB, has_login=True)["middleware"]) == len(own_pages_only(HOME)["middleware"]) == 1
