"""Hours and energy by device: kinds out of what peers say, whatever they say."""

import pytest

from pipelines.features.publishing.metrics.credit.hardware import (
    CPU,
    MOST_DEVICES,
    OTHER,
    describe_hours,
    device_kind,
    energy_kwh,
)


@pytest.mark.parametrize(
    ("description", "kind", "number"),
    [
        ("Tesla T4", "T4", 1),
        ("NVIDIA A100-SXM4-80GB", "A100", 1),
        ("2 x NVIDIA GeForce RTX 3080 Ti", "RTX 3080", 2),
        ("NVIDIA L40S", "L40S", 1),
        ("NVIDIA L4", "L4", 1),
        ("NVIDIA RTX A4000", "RTX A4000", 1),
        ("CPU, 1 thread", CPU, 1),
        ("CPU, 16 threads", CPU, 16),
        ("MPS", "MPS", 1),
        ("999999 x NVIDIA H100 80GB HBM3", "H100", MOST_DEVICES),
        ("0 x T4", "T4", 1),
        ("<b>my toaster</b>", OTHER, 1),
        ("T400", OTHER, 1),
        ("", OTHER, 1),
    ],
)
def test_what_a_peer_says_of_its_devices_comes_down_to_a_kind_and_a_number(description, kind, number):
    assert device_kind(description) == (kind, number)


def test_energy_is_hours_times_power():
    hours = {"T4": 10.0, CPU: 100.0}
    assert energy_kwh(hours) == pytest.approx(0.7 + 0.8)
    assert describe_hours(hours) == "4.2 days CPU threads, 10 h 0 min T4"
    assert energy_kwh({"of a later version": 1.0}) == energy_kwh({OTHER: 1.0}) and energy_kwh({}) == 0
