"""What the owner of a drawing Space may set."""

import re
from pathlib import Path

import pytest

from pipelines.tools.pages.drawing.settings import DrawingSettings


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (dict(SWARM="float64"), "SWARM is 'float64', expected the precision of servers: float32, bfloat16, int8."),
        (dict(AUDIT="yes"), "AUDIT is about the drawings of volunteers. Have them draw with SWARM=float32"),
        (dict(SWARM="int8", AUDIT="1"), "AUDIT is '1', expected yes, or nothing."),
        (dict(SWARM="int8", PATIENCE="soon"), "PATIENCE is 'soon', expected a whole number"),
        (
            dict(SWARM="float32", MODEL_REPOSITORY=str(Path(__file__).parent)),
            "volunteers serve a run on the Hub, ORG/RUN.",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(own, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        DrawingSettings.from_environment(dict(MODEL_REPOSITORY="org/run") | own)


def test_where_a_gpu_is_lent_volunteers_need_none():
    on_zero = dict(MODEL_REPOSITORY="org/run", SPACES_ZERO_GPU="true", DEVICE="cuda", SWARM="int8", PATIENCE="5")
    found = DrawingSettings.from_environment(on_zero)
    assert found.device == "cpu"
    assert (found.volunteers.precision, found.volunteers.audits, found.volunteers.patience_seconds) == (
        "int8",
        False,
        5,
    )
