from pipelines.tools.demo.running.event_figures import num_samples, run_history


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
