"""Who a process is, and where."""

from actorlm.runtime.identity import machine, steady_clock, this_process


def test_a_machine_is_the_same_for_its_processes():
    assert machine() == machine() != ""


def test_a_life_may_have_begun_by_another_clock():
    assert this_process("engine", "engine-0", 7).incarnation == 7


def test_a_steady_clock_goes_on_from_the_time_that_it_is_given():
    clock = steady_clock(10**18)
    times = [clock(), clock()]
    assert times == sorted(times)
    assert 10**18 <= times[0] < 10**18 + 10**10
