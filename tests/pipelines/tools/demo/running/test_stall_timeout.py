from pipelines.tools.demo.running.stall_timeout import LEAST_SECONDS, NUM_WAITS, TIMES_THE_LONGEST_WAIT, StallTimeout


def test_what_advances_now_and_then_is_waited_for_whatever_it_takes_in_all():
    timeout, now = StallTimeout(0.0), 0.0
    for _ in range(1000):
        now += 0.99 * LEAST_SECONDS
        assert not timeout.is_over(now)
        timeout.advanced(now)


def test_nothing_for_minutes_is_the_end():
    timeout = StallTimeout(100.0)
    assert not timeout.is_over(100.0 + LEAST_SECONDS)
    assert timeout.is_over(101.0 + LEAST_SECONDS) and timeout.seconds_waited(101.0 + LEAST_SECONDS) > LEAST_SECONDS


def test_a_slow_machine_gets_several_times_what_it_has_taken_lately():
    timeout = StallTimeout(0.0)
    timeout.advanced(200.0)
    assert timeout.limit_seconds == TIMES_THE_LONGEST_WAIT * 200.0
    for second in range(NUM_WAITS):
        timeout.advanced(201.0 + second)
    assert timeout.limit_seconds == LEAST_SECONDS, "what was long ago no longer counts"


def test_another_start_has_the_whole_time():
    timeout = StallTimeout(0.0)
    timeout.begin_anew(2 * LEAST_SECONDS)
    assert not timeout.is_over(2 * LEAST_SECONDS + 1)
