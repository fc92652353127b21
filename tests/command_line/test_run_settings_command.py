"""`dalle-collab run settings` and docs/settings.md say the same of every setting; mistakes name the nearest one."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hub_tools.checks import check_known
from pipelines.command_line.main import app
from pipelines.tasks.choice import settings_of
from pipelines.tasks.text_to_image.run_creation import check_names

DOCUMENT = Path(__file__).parents[2] / "docs" / "settings.md"


def run(*arguments):
    done = CliRunner().invoke(app, ["run", "settings", *arguments])
    return done.output if done.exit_code == 0 else done.exception


def test_the_document_is_what_the_command_prints():
    _, _, listed = DOCUMENT.read_text(encoding="utf-8").partition("\n\n## ")
    assert f"## {listed}".strip() == run("--markdown").strip(), (
        "docs/settings.md is old. Put what this prints below its first paragraph: dalle-collab run settings --markdown"
    )


@pytest.mark.parametrize("task", ["text-to-image", "fill-mask", "text-generation"])
def test_every_setting_says_what_it_means(task):
    found = settings_of(task)
    assert len(found) > 40
    assert [setting.name for setting in found if not setting.meaning.endswith(".")] == []
    assert len({setting.name for setting in found}) == len(found)


def test_words_choose_and_a_model_type_adds_its_own():
    assert "num_warmup_epochs" in run("warm-up") and "hidden_size" not in run("warm-up")
    assert "n_layer" in run("--task", "text-generation", "--model-type", "gpt2", "layer")
    assert "No setting mentions spam" in str(run("spam"))
    assert "transformers does not know" in str(run("--task", "fill-mask", "--model-type", "spam"))


def test_a_setting_that_there_is_not_names_the_nearest_before_the_hub_is_asked():
    with pytest.raises(ValueError, match="Unknown setting num_layers of a text-to-image run; nearest: num_hidden_la"):
        check_names({"num_layers": 8})
    with pytest.raises(ValueError, match=r"Unknown setting spam of a thing\. Cure"):
        check_known(["spam", "hat"], ["hat"], of="a thing", cure="Cure")
