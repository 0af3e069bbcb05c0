"""How often actors beat, and when their watcher ticks."""

import pytest

from actorlm.runtime.pulse import Pulse


@pytest.mark.parametrize("timeout_s", [1.01, 1.5, 4.0, 10.0, 10.5, 600.0])
def test_several_beats_fit_in_the_timeout(timeout_s):
    pulse = Pulse(timeout_s)
    assert pulse.beats >= 5
    assert pulse.beat_s <= 2.0
    assert pulse.beats * pulse.beat_s == pytest.approx(timeout_s)


def test_all_beat_at_the_same_moments():
    pulse = Pulse(10.0)
    assert {round(now + pulse.until_beat(now), 9) for now in (100.0, 100.3, 101.7)} == {102.0}


def test_a_timer_that_is_early_does_not_beat_twice():
    pulse = Pulse(10.0)
    assert pulse.until_beat(101.999) == pytest.approx(2.001)
    assert pulse.until_beat(102.001) == pytest.approx(1.999)
    assert pulse.until_tick(101.799) == pytest.approx(2.001)


@pytest.mark.parametrize("timeout_s", [1.5, 4.0, 10.0, 10.5])
def test_the_tick_at_which_all_beats_were_missed_comes_just_within_the_timeout(timeout_s):
    pulse = Pulse(timeout_s)
    now = last_beat = 100.0 + pulse.until_beat(100.0)
    for _ in range(pulse.beats):
        now += pulse.until_tick(now)
    assert timeout_s - 0.11 * pulse.beat_s < now - last_beat < timeout_s
