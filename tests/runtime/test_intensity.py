"""How often and how fast a group may restart."""

from actorlm.runtime.intensity import Deaths, Intensity

INTENSITY = Intensity(max_restarts=3, window_s=10.0, longest_pause_s=0.5)


def _after(*times, ready=True):
    deaths = Deaths(INTENSITY)
    for now in times:
        deaths.died(now)
        if ready:
            deaths.got_ready()
    return deaths


def test_as_many_deaths_as_allowed_and_no_more():
    assert _after(0.0, 1.0, 2.0).excess == ""
    assert _after(0.0, 1.0, 2.0, 9.9).excess == "4 deaths within 10 s are more than --max-restarts (3) allows"


def test_a_death_is_forgotten_after_the_window():
    assert _after(0.0, 1.0, 2.0, 10.0).excess == ""


def test_deaths_in_vain_are_counted_however_slow_they_are():
    deaths = _after(0.0, 100.0, 200.0, 300.0, ready=False)
    assert deaths.excess == "4 deaths without getting ready are more than --max-restarts (3) allows"


def test_pauses_double_up_to_the_longest_and_begin_anew_after_the_window():
    pauses = [_after(*range(count)).pause_s for count in (1, 2, 3, 4)]
    assert pauses == [0.1, 0.2, 0.4, 0.5]
    assert _after(0.0, 1.0, 20.0).pause_s == 0.1
    deaths = Deaths(Intensity(10**9, 1e12, 5.0), list(map(float, range(5000))))
    assert deaths.pause_s == 5.0, "no overflow"
