import json

from hub_tools.processes.event_files import EventReader, read_events


def line(**values):
    return json.dumps(values) + "\n"


def test_a_line_that_a_kill_has_cut_off_is_none(tmp_path):
    file = tmp_path / "events.jsonl"
    assert read_events(file) == []
    file.write_text(line(event="joined", epoch=1) + '{"event": "st' + "\n" + line(event="step", epoch=2) + '{"eve')
    assert [event["epoch"] for event in read_events(file)] == [1, 2]


def test_a_reader_returns_each_event_once_and_only_when_it_is_complete(tmp_path):
    file = tmp_path / "events.jsonl"
    reader = EventReader(file)
    assert reader.new() == []
    file.write_text(line(epoch=1) + '{"epoch": ')
    assert reader.new() == [{"epoch": 1}] and reader.new() == []
    with file.open("a") as more:
        more.write("2}\n[3]\n")
    assert reader.new() == [{"epoch": 2}]


def test_a_reader_passes_over_what_an_earlier_start_has_written_and_ends_its_last_line(tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text(line(epoch=1) + '{"epoch": 2')
    reader = EventReader(file)
    with file.open("a") as more:
        more.write(line(epoch=3))
    assert reader.new() == [{"epoch": 3}]
    assert [event["epoch"] for event in read_events(file)] == [1, 3]
