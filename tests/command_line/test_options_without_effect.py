"""An option that would be ignored is named in one line, before anything is read or computed."""

import pytest
import typer
from typer.testing import CliRunner

from pipelines.command_line.main import app
from pipelines.command_line.terminal.setting_options import refuse_given

GENERATE, EVALUATE = ("generate", "org/run", "a star"), ("evaluate", "org/run")
ASSIST, AUTHORIZE = ("run", "assist", "org/run"), ("run", "authorize", "org/run")
CONVERT = ("model", "convert", "dalle.pt", "--output", "x")
FINETUNE = ("model", "finetune", "org/run", "--dataset", "org/codes", "--output", "x", "--full")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*GENERATE, "--patience", "60"), "--patience: it is about volunteers' servers, for --swarm and --blocks"),
        ((*GENERATE, "--swarm", "--batch-size", "8"), "--batch-size: with --swarm volunteers choose"),
        ((*EVALUATE, "--compare-top-k", "3"), "--compare-top-k: it has no effect without --compare OTHER"),
        ((*EVALUATE, "--seeds", "2", "--tokens", "64"), "--seeds, --tokens: it has no effect without --token-classifi"),
        ((*ASSIST, "--evaluation-drawings", "2"), "--evaluation-drawings: it has no effect without --evaluation-inter"),
        ((*ASSIST, "--audit-minutes", "5"), "--audit-minutes: it has no effect without --audit-prompts FILE"),
        ((*AUTHORIZE, "--open", "--port", "80"), "--port: --open ends admission"),
        ((*AUTHORIZE, "--write-space", "x", "--token-minutes", "5"), "--token-minutes: --write-space serves nothing"),
        (
            (*CONVERT, "--final-attention", "row", "--conv-window", "corner"),
            "--conv-window: no layer has convolutional",
        ),
        ((*FINETUNE, "--lora-rank", "4"), "--lora-rank: --full trains all weights and no adapter"),
        (
            ("clip", "train", "x", "--output", "y", "--code-corruption", "0.1"),
            "--code-corruption: it has no effect wit",
        ),
        (("chaos", "--attack", "lying_epoch", "--faults", "3", "--dry-run"), "--faults: --attack says what happens"),
        (("chaos", "--script", "x", "--attack", "lying_epoch"), "--attack: --script says what happens"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(word for word in value[2:] if word[:2] == "--"),
)
def test_an_option_without_effect_is_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ValueError) and f"Leave out {message}" in str(result.exception)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("join", "org/run", "--event-seconds", "1"), "no file is named. Add: --events FILE"),
        (("data", "prepare", ".", "--codec", "x", "--output", "y", "--job-publish", "a/b"), "is for Jobs only"),
        (("data", "prepare", ".", "--codec", "..", "--codec-revision", "main", "--output", "y"), "has no revisions"),
        (("data", "prepare", ".", "--codec", "x", "--output", "y", "--engine", "local:9"), "only ray has an address"),
    ],
    ids=lambda value: None if isinstance(value, str) else value[-2],
)
def test_an_option_without_what_it_belongs_to_is_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ValueError) and message in str(result.exception)


def test_defaults_and_other_options_are_not_refused():
    command = typer.Typer()

    @command.command()
    def act(context: typer.Context, first: int = 1, second: int = 2) -> None:
        refuse_given(context, "a reason", "first")

    assert CliRunner().invoke(command, ["--second", "2"]).exit_code == 0
    assert CliRunner().invoke(command, ["--first", "1"]).exit_code == 1
