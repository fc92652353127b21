"""`dalle-collab run index` explains mistakes before it loads anything; what it makes is tested with the Space."""

import pytest
import typer
from typer.testing import CliRunner

from pipelines.command_line.run.index import index

app = typer.Typer()
app.command()(index)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}"], r"does not say which dataset it is of. Name it: --dataset"),
        (["{tmp}", "--dataset", "{tmp}"], r"has no Parquet shards. Make some: dalle-collab data prepare"),
        (
            ["{tmp}", "--dataset", "./nowhere"],
            r"There is no folder ./nowhere. Expected a folder of shards or a",
        ),
        (["{tmp}", "--dataset", "{tmp}", "--private"], r"the index is not published. Add: --publish ORG/NAME"),
    ],
)
def test_mistakes_are_explained(arguments, message, tmp_path):
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    result = CliRunner().invoke(app, [*filled, "--output", str(tmp_path / "index")])
    with pytest.raises((ValueError, OSError), match=message):
        raise result.exception
    assert not (tmp_path / "index").exists()


def test_help_shows_examples():
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0 and "dalle-collab run index my-org/birds --output birds-index" in result.output
