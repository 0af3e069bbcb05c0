"""Who a process is, and where."""

from actorlm.runtime.identity import machine


def test_a_machine_is_the_same_for_its_processes():
    assert machine() == machine() != ""
