"""The account of one replica: nothing counts twice, nothing is left out."""

from actorlm.scheduling.load import BURST_S, DECODE_COST, Load
from actorlm.scheduling.workload import Workload


def test_what_was_sent_counts_until_a_report_includes_it():
    workload = Workload(10_000)
    for prefill in (100, 200, 400):
        workload.send(prefill, 0)
    assert workload.expected == 700
    workload.report(2, Load(waiting=150, prefill=50, decode=3), 0.0)
    assert workload.expected == 400 + 150 + 50 + 3 * DECODE_COST
    workload.report(3, Load(prefill=5), 0.0)
    assert workload.expected == 5
    workload.report(3, Load(), 0.0)
    assert workload.expected == 0
    workload.check()


def test_what_has_ended_before_a_report_counts_no_more():
    workload = Workload(10_000)
    first, second = workload.send(100, 1), workload.send(50, 0)
    workload.end(first, 0.0)
    assert workload.expected == 50
    workload.report(1, Load(), 0.0)
    assert workload.expected == 50
    workload.end(second, 0.0)
    assert workload.expected == 0
    workload.end(second, 0.0)
    assert workload.expected == 0
    workload.check()


def test_what_finds_no_room_waits():
    workload = Workload(1000)
    workload.report(0, Load(decode=10, kv_used=900), 0.0)
    assert workload.expected == 10 * DECODE_COST
    workload.send(80, 0)
    assert workload.expected == 10 * DECODE_COST + 80
    workload.send(120, 0)
    assert workload.expected == 10 * DECODE_COST + 200 + 100 * DECODE_COST
    workload.report(2, Load(waiting=120, prefill=40, decode=10, kv_used=980), 0.0)
    assert workload.expected == 10 * DECODE_COST + 160 + 100 * DECODE_COST


def test_what_has_just_been_done_still_counts_in_a_burst():
    workload = Workload(10_000)
    early, late = workload.send(100, 0), workload.send(10, 1)
    workload.end(early, 0.1)
    workload.report(2, Load(prefill=4), 0.3)
    workload.end(late, 0.3)
    assert workload.expected == 4
    assert workload.before_progress(0.3) == 110 + DECODE_COST
    assert workload.before_progress(0.1 + BURST_S) == 10 + DECODE_COST
    assert workload.before_progress(0.3 + BURST_S) == 4
    workload.check()
