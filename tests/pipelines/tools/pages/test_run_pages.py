"""Every page of a run leads to the others, and a link to it that is shared shows the run's newest picture."""

import re

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from fastapi.testclient import TestClient

from hub_tools.publishing.page_settings import SPACE_VARIABLES
from hub_tools.publishing.space_publishing import SPACE_SUFFIXES, settings_of_spaces
from pipelines.tools.pages.own_pages import own_pages_only
from pipelines.tools.pages.run_pages import NAMES, RunPage

GRADIO = """<html><head><meta property="og:title" content="Gradio" /><meta
  name="twitter:image" content="https://gradio.example/x.jpg" /><script>const config = '<meta property="og:x">'</script>
</head><body><gradio-app></gradio-app></body></html>"""


@pytest.mark.parametrize("own", [name for name in NAMES if name != "landing_page"])
def test_each_page_leads_to_the_four_others(own):
    spaces = {name: f"org/birds-{suffix}" for name, suffix in SPACE_SUFFIXES.items()}
    assert list(spaces) == list(NAMES) == list(SPACE_VARIABLES)
    links = RunPage.from_environment(own, settings_of_spaces("org/birds", spaces)[own]).links()
    led_to = re.findall(r'<a href="[^"]+/spaces/([^"]+)"', links)
    assert led_to == [space for name, space in spaces.items() if name != own]
    assert f'<span aria-current="page">{NAMES[own]}</span>' in links


def test_a_page_alone_has_no_links_and_a_wrong_place_is_refused():
    assert RunPage.from_environment("join_training", {"RUN": "org/birds", "JOIN_SPACE": "org/join"}).links() == ""
    with pytest.raises(ValueError, match=r"LANDING_SPACE is 'javascript:alert.1.'; expected a Space"):
        RunPage.from_environment("join_training", {"LANDING_SPACE": "javascript:alert(1)"})


def test_what_is_served_at_the_root_names_the_runs_picture_and_nothing_else_changes():
    page = RunPage(own="text_to_image_demo", run="org/birds", places={"join_training": "https://join.example/?a&b"})
    application = FastAPI(**own_pages_only({}, page.middleware()))
    for path in ("/", "/other"):
        application.get(path, response_class=HTMLResponse)(lambda: GRADIO)
    client = TestClient(application, base_url="http://localhost")
    assert client.get("/other").text == GRADIO
    assert client.get("/", headers={"origin": "https://evil.example"}).status_code == 403
    served = client.get("/").text
    head = served.partition("<script>")[0]
    assert "Gradio" not in head and "gradio.example" not in head and '"Draw · org/birds"' in head
    assert re.search('og:image" content="http[^"]+/org/birds/resolve/main/progress_reel/[^"]+"', head)
    assert "config = '<meta property=\"og:x\">'" in served
    assert 'href="https://join.example/?a&amp;b"' in served.partition("<gradio-app>")[0]
