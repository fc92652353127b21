import json

from pipelines.tools.demo.running.event_files import EventReader, num_samples, read_events, run_history


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


def test_epochs_that_were_trained_a_second_time_count_as_they_were_then():
    looks = [{"summary": None}, *({"summary": dict(epoch=e, loss=9.0)} for e in (1, 2, 3)), {"event": "entry"}]
    looks += [{"summary": dict(epoch=e, loss=5.0)} for e in (2, 3, 3, 4)]
    found = run_history(looks)
    assert [point["epoch"] for point in found] == [1, 2, 2, 3, 3, 4]
    assert [point["loss"] for point in found] == [9.0, 9.0, 5.0, 5.0, 5.0, 5.0]


def test_samples_add_up_over_the_starts_of_a_trainer():
    events = [dict(event="joined"), dict(event="step", num_samples=32), dict(event="step", num_samples=64)]
    assert num_samples(events) == 64
    assert num_samples([*events, dict(event="joined"), dict(event="step", num_samples=10), dict(event="left")]) == 74
    assert num_samples([dict(event="joined")]) == num_samples([]) == 0
