"""What follows a death, for the processes of real plans."""

import msgspec
import pytest

from actorlm.config import Config
from actorlm.policies import ON_DEATH, supervision
from actorlm.runtime.children import OnDeath
from actorlm.runtime.pulse import Pulse
from actorlm.topology import Role, plan


class _Model:
    num_layers, num_heads, num_kv_heads, hidden_size, intermediate_size = 2, 4, 4, 64, 64
    vocab_size, head_dim, max_model_len, tied = 259, 16, 64, True


def _supervision(**sections):
    config = msgspec.convert({"model": {"model_impl": "null"}} | sections, Config)
    topology = plan(config, _Model(), directory="RUN", free_bytes=1 << 40, cores=4)
    return supervision(config, topology, Pulse(10.0), "here")


def test_every_process_of_a_tree_has_a_policy():
    tree = _supervision(parallel={"data": 2, "tensor": 2, "pipeline": 2}, http={"frontends": 2, "detokenizers": 2})
    found = {child.role: child.on_death for child in tree.children.values()}
    assert found == ON_DEATH
    assert set(Role) - set(found) == {Role.SUPERVISOR, Role.HOST, Role.OPERATOR, Role.CLIENT}, "no children"


def test_a_replica_is_one_group_and_everybody_else_is_alone():
    tree = _supervision(parallel={"data": 2, "tensor": 2})
    groups = {child.group: {one.name for one in tree.group(child.group)} for child in tree.children.values()}
    assert groups["engine-1"] == {"engine-1", "worker-1-0", "worker-1-1"}
    assert all(len(names) == 1 for group, names in groups.items() if not group.startswith("engine-"))


def test_what_a_launcher_has_started_ends_the_tree():
    tree = _supervision(parallel={"tensor": 2, "executor": "external"})
    assert tree.children["worker-0-1"].on_death is OnDeath.END_TREE


@pytest.mark.parametrize(("name", "ranks"), [("engine-1", "dp1"), ("worker-1-3", "dp1 pp1 tp1"), ("balancer", "")])
def test_where_a_child_is_can_be_shown(name, ranks):
    child = _supervision(parallel={"data": 2, "tensor": 2, "pipeline": 2}).children[name]
    assert (child.host, child.ranks) == ("here", ranks)


def test_the_bounds_are_options():
    options = {"max_restarts": 7, "restart_window_s": 5, "max_restart_pause_s": 0.3, "start_timeout_s": 9}
    limits = _supervision(supervision=options).limits
    intensity = limits.intensity
    assert (intensity.max_restarts, intensity.window_s, intensity.longest_pause_s) == (7, 5, 0.3)
    assert limits.start_timeout_s == 9
