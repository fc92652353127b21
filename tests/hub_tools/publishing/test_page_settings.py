"""A static Space's settings are checked and written when it is bundled."""

import json

import httpx
import pytest

from hub_tools.publishing.page_settings import parse_settings, write_page_settings
from hub_tools.publishing.space_bundling import bundle_folder


@pytest.fixture
def space(tmp_path):
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "README.md").write_text("---\nsdk: static\n---\n")
    (folder / "settings.json").write_text('{"hub": "https://huggingface.co", "run": "", "source_code": ""}')
    return folder


def test_a_bundle_has_the_settings_and_the_template_keeps_its_own(space, tmp_path):
    template = (space / "settings.json").read_text()
    bundle_folder(space, tmp_path / "bundle", {"run": "my-org/birds", "hub": "http://127.0.0.1:8300"})
    written = json.loads((tmp_path / "bundle" / "settings.json").read_text())
    assert written == {"hub": "http://127.0.0.1:8300", "run": "my-org/birds", "source_code": ""}
    assert (space / "settings.json").read_text() == template


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("run", "birds", "run is 'birds', expected ORG/NAME"),
        ("run", "my-org/<script>", "run is 'my-org/<script>', expected ORG/NAME"),
        ("hub", "javascript:alert(1)", "expected a web address such as https://huggingface.co"),
        ("hub", "https://user@hub.example", "expected a web address"),
        ("hub", "https://hub.example/folder", "expected a web address"),
        ("source_code", "ftp://code.example", "expected a web address such as https://example.org/code"),
        ("colour", "red", "The page has no setting colour. There are: hub, run, source_code"),
    ],
)
def test_a_wrong_setting_is_refused(space, name, value, words):
    with pytest.raises(ValueError, match=words):
        write_page_settings(space, {name: value})


def test_settings_of_a_space_with_a_program_would_have_no_effect(space):
    (space / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"The Space page has no settings\.json, --set run=my-org/birds would have no"):
        write_page_settings(space, {"run": "my-org/birds"})


def test_a_setting_has_a_name_and_a_value():
    assert parse_settings(["run=my-org/birds", "source_code=https://a.example/?b=c"]) == {
        "run": "my-org/birds",
        "source_code": "https://a.example/?b=c",
    }
    with pytest.raises(ValueError, match="--set got 'birds', expected NAME=VALUE"):
        parse_settings(["birds"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
def test_the_landing_page_is_published_as_a_static_space_that_knows_its_hub(run_client, hub, api, tokens, repo_id):
    arguments = ("hub-tools", "publish", "space", "landing_page", repo_id, "--set", "run=my-org/birds")
    run_client(*arguments, token=tokens.alice)
    assert api.space_info(repo_id).sdk == "static"
    settings = httpx.get(f"{hub.endpoint}/spaces/{repo_id}/resolve/main/settings.json").json()
    assert (settings["hub"], settings["run"]) == (hub.endpoint, "my-org/birds")
    assert "Nothing to do" in run_client(*arguments, token=tokens.alice).stdout
