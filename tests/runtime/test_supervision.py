"""The supervisor's decisions, event by event."""

import pytest

from actorlm.runtime.children import Child, ChildState, OnDeath
from actorlm.runtime.intensity import Intensity
from actorlm.runtime.supervision import (
    AnnounceLost,
    EndChild,
    GiveUp,
    KillChild,
    Limits,
    LookAt,
    StartChild,
    Supervision,
    TreeMoved,
)  # fmt: skip
from actorlm.runtime.watch import Patience, Report

LIMITS = Limits(
    intensity=Intensity(max_restarts=2, window_s=60.0, longest_pause_s=5.0),
    patience=Patience(tick_s=0.5, silence_ticks=20, stall_ticks=40),
    start_timeout_s=10.0,
)


@pytest.fixture
def tree():
    children = [
        Child("worker-0-0", "worker", "engine-0", OnDeath.RESTART_GROUP),
        Child("engine-0", "engine", "engine-0", OnDeath.RESTART_GROUP),
        Child("worker-1-0", "worker", "engine-1", OnDeath.RESTART_GROUP),
        Child("engine-1", "engine", "engine-1", OnDeath.RESTART_GROUP),
        Child("balancer", "balancer", "balancer", OnDeath.RESTART_ALONE),
    ]
    return Supervision(children, LIMITS)


def _all_ready(tree):
    tree.start(0.0)
    effects = [effect for child in tree.children.values() for effect in tree.ready(child.name, child.incarnation)]
    assert effects[-1] == TreeMoved(complete=True, serving=True, missing=())


def _kinds(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


def _restart(tree, name, now):
    """Lets a child die and its group come back."""
    for effect in _kinds(tree.exited(name, "x", now), KillChild):
        tree.exited(effect.name, "killed", now)
    started = _kinds(tree.look(now + 10), StartChild)
    for effect in started:
        tree.ready(effect.name, effect.incarnation)
    return started


def test_a_group_that_somebody_else_has_started_is_not_restarted():
    children = [
        Child("worker-0-0", "worker", "engine-0", OnDeath.END_TREE),
        Child("engine-0", "engine", "engine-0", OnDeath.RESTART_GROUP),
        Child("balancer", "balancer", "balancer", OnDeath.RESTART_ALONE),
    ]
    tree = Supervision(children, LIMITS)
    _all_ready(tree)
    assert _restart(tree, "balancer", 1.0) != []
    effects = tree.exited("engine-0", "why", 20.0)
    assert _kinds(effects, GiveUp) == [GiveUp("why")]
    assert _kinds(effects, KillChild) == []
    assert _kinds(tree.look(60.0), StartChild) == []


def test_starts_all_in_order(tree):
    *starts, look = tree.start(0.0)
    assert [effect.name for effect in starts] == list(tree.children)
    assert look == LookAt(LIMITS.start_timeout_s)


def test_a12_a_death_before_readiness_takes_the_tree_down_with_its_cause(tree):
    tree.start(0.0)
    tree.ready("balancer", 1)
    effects = tree.exited("engine-0", "engine-0: no such file", 1.0)
    assert _kinds(effects, GiveUp) == [GiveUp("engine-0: no such file")]
    assert _kinds(tree.exited("worker-0-0", "killed", 1.1), GiveUp) == [], "the first cause only"


def test_a12_a_start_that_takes_too_long_names_who_is_missing(tree):
    tree.start(0.0)
    tree.ready("balancer", 1)
    assert tree.look(9.0) == []
    [effect] = tree.look(10.5)
    assert "worker-0-0, engine-0, worker-1-0, engine-1" in effect.cause


def test_a_replica_restarts_as_one_and_others_never_notice(tree):
    _all_ready(tree)
    effects = tree.exited("worker-0-0", "killed", 100.0)
    assert effects[0] == AnnounceLost("worker-0-0", "worker", 1)
    assert effects[1] == TreeMoved(complete=False, serving=True, missing=("worker-0-0",))
    assert _kinds(effects, KillChild) == [KillChild("engine-0", "it restarts with worker-0-0", follows=True)]
    assert _kinds(effects, LookAt) == [LookAt(100.1)]
    tree.exited("engine-0", "killed", 100.05)
    assert tree.look(100.1) == [StartChild("worker-0-0", 2), StartChild("engine-0", 2), LookAt(110.1)]
    assert tree.children["engine-1"].state is ChildState.READY


def test_a_replica_restarts_when_its_last_process_has_ended(tree):
    _all_ready(tree)
    tree.exited("worker-0-0", "killed", 100.0)
    assert tree.look(100.1) == [], "its engine lives"
    _, _, *started, look = tree.exited("engine-0", "killed", 103.0)
    assert started == [StartChild("worker-0-0", 2), StartChild("engine-0", 2)]
    assert look == LookAt(113.0)


def test_a02_a_role_without_a_ready_child_is_not_serving(tree):
    _all_ready(tree)
    [moved] = _kinds(tree.exited("balancer", "killed", 0.0), TreeMoved)
    assert not moved.serving


def test_restarts_pause_longer_each_time(tree):
    _all_ready(tree)
    tree.exited("balancer", "x", 100.0)
    assert tree.look(100.05) == []
    assert tree.look(100.11) == [StartChild("balancer", 2), LookAt(110.11)]
    tree.ready("balancer", 2)
    tree.exited("balancer", "x", 101.0)
    assert tree.look(101.15) == []
    assert tree.look(101.21) == [StartChild("balancer", 3), LookAt(111.21)]


def test_a03_too_many_deaths_within_the_window_end_the_tree(tree):
    _all_ready(tree)
    _restart(tree, "balancer", 100.0)
    _restart(tree, "balancer", 110.0)
    [effect] = _kinds(tree.exited("balancer", "balancer: killed by SIGKILL", 120.0), GiveUp)
    assert effect.cause.startswith("balancer: killed by SIGKILL; 3 deaths")


def test_each_group_has_a_count_of_its_own(tree):
    """However many replicas there are: those that die apart do not end the tree together."""
    _all_ready(tree)
    for now in (100.0, 110.0):
        for name in ("balancer", "engine-0", "worker-1-0"):
            assert _restart(tree, name, now)
    [effect] = _kinds(tree.exited("worker-0-0", "why", 120.0), GiveUp)
    assert effect.cause.startswith("why; 3 deaths within 60 s"), "of engine-0's group, whoever of it died"


def test_an_ordered_restart_never_counts_and_says_so(tree):
    _all_ready(tree)
    for now in (100.0, 101.0, 102.0, 103.0):
        assert tree.order("engine-0", now) == [EndChild("worker-0-0"), EndChild("engine-0")]
        effects = tree.exited("worker-0-0", "killed", now)
        assert effects[0] == AnnounceLost("worker-0-0", "worker", tree.children["worker-0-0"].incarnation, excused=True)
        assert _kinds(effects, StartChild) == [], "its engine lives"
        started = _kinds(tree.exited("engine-0", "killed", now), StartChild)
        assert [effect.name for effect in started] == ["worker-0-0", "engine-0"], "without a pause"
        for effect in started:
            tree.ready(effect.name, effect.incarnation)
    effects = tree.exited("engine-0", "x", 104.0)
    assert effects[0] == AnnounceLost("engine-0", "engine", 5, excused=False), "this one was a death"
    assert LookAt(104.1) in effects, "the first one"


def test_an_order_shortens_the_pause_of_a_group_that_is_down(tree):
    _all_ready(tree)
    tree.exited("balancer", "x", 100.0)
    assert tree.order("balancer", 100.01) == [StartChild("balancer", 2), LookAt(110.01)]
    assert tree.look(100.2) == []


def test_an_extra_child_is_no_part_of_the_whole(tree):
    """It may come, be ready and go; and its role is served by it, if by nobody else."""
    _all_ready(tree)
    extra = Child("balancer-1", "balancer", "balancer-1", OnDeath.LET_GO)
    assert tree.add(extra, 50.0) == [StartChild("balancer-1", 1), LookAt(60.0)]
    assert tree.ready("balancer-1", 1) == [TreeMoved(complete=True, serving=True, missing=())]
    tree.order("balancer", 51.0)
    [moved] = _kinds(tree.exited("balancer", "killed", 51.0), TreeMoved)
    assert (moved.complete, moved.serving) == (False, True)
    tree.ready("balancer", 2)
    effects = tree.exited("balancer-1", "exited with status 0", 52.0)
    assert effects == [
        AnnounceLost("balancer-1", "balancer", 1, excused=True),
        TreeMoved(complete=True, serving=True, missing=()),
    ]
    assert "balancer-1" not in tree.children


def test_who_restarts_alone_is_alone_in_its_group():
    children = [Child(name, "engine", "engine-0", OnDeath.RESTART_ALONE) for name in ("engine-0", "worker-0-0")]
    with pytest.raises(AssertionError, match="not alone"):
        Supervision(children, LIMITS)


def test_old_deaths_are_forgiven(tree):
    _all_ready(tree)
    for now in (0.0, 100.0, 200.0, 300.0):
        assert [effect.name for effect in _restart(tree, "balancer", now)] == ["balancer"]


def test_a03_restarts_that_fail_slowly_end_the_tree_too(tree):
    _all_ready(tree)
    for death in range(2):
        assert not _kinds(tree.exited("balancer", "x", 100.0 * death), GiveUp)
        assert _kinds(tree.look(100.0 * death + 10), StartChild)
    [effect] = _kinds(tree.exited("balancer", "balancer: no such file", 200.0), GiveUp)
    assert effect.cause.startswith("balancer: no such file; 3 deaths without getting ready")


def test_a03_a_restart_that_takes_longer_than_a_start_may_is_a_death(tree):
    _all_ready(tree)
    tree.exited("balancer", "x", 100.0)
    tree.look(101.0)
    assert tree.look(110.9) == []
    assert tree.look(111.1) == [KillChild("balancer", "not ready after 10 s (--start-timeout-s)")]
    tree.ready("balancer", 2)
    assert tree.look(200.0) == []


def test_a_silent_child_is_killed_by_ticks_not_by_time(tree):
    _all_ready(tree)
    for _ in range(19):
        assert tree.tick() == []
        for name in ("engine-0", "engine-1", "worker-0-0", "worker-1-0"):
            tree.heard(name, [])
    assert tree.tick() == [KillChild("balancer", "silent for 10 s (--heartbeat-timeout-s)")]


def test_a_child_that_has_something_to_do_and_does_nothing_is_killed_though_it_is_heard(tree):
    _all_ready(tree)
    killed = []
    for tick in range(45):
        for name in tree.children:
            tree.heard(name, [Report("messages", 3, 7 if name == "balancer" else tick)])
        killed += tree.tick()
    why = "3 messages waited for 20 s and none was dealt with (--stall-timeout-s)"
    assert killed == [KillChild("balancer", why)]


def test_a_successor_is_not_blamed_for_what_was_left_undone(tree):
    _all_ready(tree)
    for _ in range(39):
        for name in tree.children:
            tree.heard(name, [Report("messages", 3, 0)])
        assert tree.tick() == []
    for name in ("engine-0", "engine-1", "worker-0-0", "worker-1-0"):
        tree.heard(name, [])
    _restart(tree, "balancer", 100.0)
    tree.heard("balancer", [Report("messages", 3, 0)])
    assert tree.tick() == []


def test_a_starting_child_may_be_silent(tree):
    tree.start(0.0)
    assert not any(tree.tick() for _ in range(100))


def test_readiness_of_an_earlier_life_is_not_believed(tree):
    _all_ready(tree)
    tree.exited("balancer", "x", 0.0)
    tree.look(1.0)
    assert tree.ready("balancer", 1) == []
    assert tree.children["balancer"].state is ChildState.STARTING


@pytest.fixture
def spread():
    """A replica on each of two hosts, and one on both; the other host is not here yet."""
    children = [
        Child("engine-0", "engine", "engine-0", OnDeath.RESTART_GROUP, host="a"),
        Child("engine-1", "engine", "engine-1", OnDeath.RESTART_GROUP, host="b"),
        Child("worker-2-0", "worker", "engine-2", OnDeath.RESTART_GROUP, host="a"),
        Child("worker-2-1", "worker", "engine-2", OnDeath.RESTART_GROUP, host="b"),
        Child("balancer", "balancer", "balancer", OnDeath.RESTART_ALONE, host="a"),
    ]
    return Supervision(children, LIMITS, absent=["b"])


def _names(effects):
    return [effect.name for effect in _kinds(effects, StartChild)]


def _joined(spread):
    spread.start(0.0)
    spread.host_came("b", 1.0)
    return [effect for child in spread.children.values() for effect in spread.ready(child.name, child.incarnation)]


def test_a26_groups_wait_for_their_hosts_and_for_no_others(spread):
    effects = spread.start(0.0)
    assert _names(effects) == ["engine-0", "balancer"]
    assert _names(spread.host_came("b", 1.0)) == ["engine-1", "worker-2-0", "worker-2-1"]


def test_a26_a_host_that_never_comes_ends_the_start(spread):
    spread.start(0.0)
    spread.ready("engine-0", 1)
    assert _kinds(spread.look(LIMITS.start_timeout_s), GiveUp)


def test_a_lost_host_takes_its_replicas_and_those_that_span_it_and_no_others(spread):
    assert _joined(spread)[-1] == TreeMoved(complete=True, serving=True, missing=())
    spread.host_lost("b")
    effects = spread.exited("engine-1", "gone", 2.0) + spread.exited("worker-2-1", "gone", 2.0)
    assert _kinds(effects, KillChild) == [KillChild("worker-2-0", "it restarts with worker-2-1", True)]
    assert _kinds(effects, TreeMoved)[-1].missing == ("engine-1", "worker-2-1")
    effects += spread.exited("worker-2-0", "killed", 2.0)
    assert [effect.excused for effect in _kinds(effects, AnnounceLost)] == [True] * 3, "no request is to blame"
    assert _names(spread.look(1000.0)) == [], "they wait for the host"
    assert _names(spread.host_came("b", 1001.0)) == ["engine-1", "worker-2-0", "worker-2-1"]
    assert {child.incarnation for child in spread.children.values()} == {1, 2}


def test_losing_a_host_again_and_again_is_no_restart_that_counts(spread):
    _joined(spread)
    for turn in range(10):
        spread.host_lost("b")
        effects = spread.exited("engine-1", "gone", turn) + spread.exited("worker-2-1", "gone", turn)
        effects += spread.exited("worker-2-0", "killed", turn)
        effects += spread.host_came("b", turn)
        assert _kinds(effects, GiveUp) == []
    assert _kinds(spread.exited("engine-0", "x", 10.0), GiveUp) == []


def test_what_a_group_died_of_when_its_host_was_being_lost_is_forgotten(spread):
    _joined(spread)
    for turn in range(10):
        spread.exited("worker-2-0", "its peer is gone", turn)
        spread.host_lost("b")
        effects = spread.exited("worker-2-1", "gone", turn) + spread.exited("engine-1", "gone", turn)
        assert _kinds(effects, GiveUp) == []
        spread.host_came("b", turn + 0.5)


def test_a_host_that_is_told_to_leave_is_ordered_to(spread):
    _joined(spread)
    spread.host_lost("b", ordered=True)
    assert _kinds(spread.exited("engine-1", "gone", 2.0), AnnounceLost) == [AnnounceLost("engine-1", "engine", 1, True)]
    spread.host_came("b", 3.0)
    assert not _kinds(spread.exited("engine-1", "x", 4.0), AnnounceLost)[0].excused


def test_a_host_lost_before_the_tree_was_ready_is_waited_for(spread):
    spread.start(0.0)
    spread.host_came("b", 1.0)
    spread.host_lost("b")
    assert _kinds(spread.exited("engine-1", "gone", 2.0), GiveUp) == []
    assert _names(spread.host_came("b", 3.0)) == ["engine-1"]


def test_a_rank_that_dies_of_its_peers_host_waits_for_that_host_too(spread):
    _joined(spread)
    effects = spread.exited("worker-2-0", "its peer is gone", 2.0)
    assert _kinds(effects, KillChild) == [KillChild("worker-2-1", "it restarts with worker-2-0", True)]
    spread.host_lost("b")
    spread.exited("worker-2-1", "gone", 3.0)
    assert _names(spread.look(100.0)) == []
    assert "worker-2-0" in _names(spread.host_came("b", 101.0))


def test_a_child_of_another_host_may_be_silent_for_a_little_longer():
    near, far = (Child(name, "engine", name, OnDeath.RESTART_GROUP) for name in ("near", "far"))
    far.slack_ticks = 2
    tree = Supervision([near, far], LIMITS)
    tree.start(0.0)
    tree.ready("near", 1)
    tree.ready("far", 1)
    killed = [[effect.name for effect in tree.tick()] for _ in range(LIMITS.patience.silence_ticks + 2)]
    assert [names for names in killed if names] == [["near"], ["far"]]
    assert killed[-1] == ["far"]
