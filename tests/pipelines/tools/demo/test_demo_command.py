import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pipelines.command_line.demo import app
from pipelines.tools.demo.scenes.scenes import SceneAttributes, held_out_combinations, render_scene, scene_random

RED_STAR = SceneAttributes(shape="star", colour="red", size="small", position="left", background="blue")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_scenes_are_written_and_counted_by_their_dirt(tmp_path):
    result = run("scenes", "--output", tmp_path, "--num-pictures", 400, "--pictures-per-tar", 300, "--seed", 2)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000.tar", "00001.tar"]
    message = " ".join(result.output.split())
    assert "Wrote 400 pictures to" in message
    assert all(kind in message for kind in ("good ones", "NSFW", "extreme ratio", "corrupt picture", "empty caption"))


def test_clean_scenes_have_no_dirt(tmp_path):
    result = run("scenes", "--output", tmp_path, "--num-pictures", 30, "--clean")
    assert "30 good ones." in " ".join(result.output.split())


def test_a_bad_number_of_pictures_is_one_message(tmp_path):
    result = run("scenes", "--output", tmp_path, "--num-pictures", 0)
    assert isinstance(result.exception, ValueError)
    assert str(result.exception).startswith("num_pictures is 0; expected at least 1")


def test_captions_are_held_out_ones_and_too_many_are_refused():
    result = run("captions", "--num-captions", 3)
    lines = result.output.splitlines()
    assert len(lines) == 3
    for line, (colour, background, position, shape) in zip(lines, held_out_combinations(), strict=False):
        assert all(word in line for word in (colour, background, position.split()[0], shape))
    assert isinstance(run("captions", "--num-captions", 100_000).exception, ValueError)


def test_the_judge_says_what_it_sees_and_whether_it_was_asked_for(tmp_path):
    path = tmp_path / "picture.png"
    render_scene(RED_STAR, scene_random(1)).save(path)
    assert "small red star, left, on a blue background" in run("judge", path).output
    caption = "a small red star on the left of a blue background"
    assert ", as asked for" in run("judge", path, "--caption", caption).output
    assert ", not as asked for" in run("judge", path, "--caption", caption.replace("red", "black")).output


def test_the_judge_refuses_what_is_no_scene(tmp_path):
    path = tmp_path / "picture.png"
    render_scene(RED_STAR, scene_random(1)).resize((64, 48)).save(path)
    with pytest.raises(ValueError, match="expected a square RGB picture"):
        raise run("judge", path).exception
    assert isinstance(run("judge", tmp_path / "absent.png").exception, FileNotFoundError)


def test_help_of_the_demo_commands_needs_no_heavy_library():
    code = "import sys; import pipelines.command_line.demo; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "PIL", "rich.progress", "transformers"} & set(modules)
