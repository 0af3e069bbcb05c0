"""The plan of a tree is a function of options and numbers."""

import msgspec
import pytest

from actorlm.config import Config
from actorlm.errors import ConfigError, InsufficientMemory
from actorlm.topology import ModelSize, Role, plan

SIZE = ModelSize(num_parameters=1_000_000, kv_bytes_per_token=1024, max_model_len=2048)
GIB = 2**30


def _config(**sections):
    return msgspec.convert(sections, Config)


def _plan(config, free=4 * GIB, size=SIZE):
    return plan(config, size, directory="/run/x", free_bytes=free, cores=4)


def test_one_process_for_each_actor():
    topology = _plan(_config(parallel={"data": 2}, http={"frontends": 3, "detokenizers": 2}))
    counts = {role: len(topology.of_role(role)) for role in Role}
    assert counts[Role.ENGINE] == 2
    assert counts[Role.FRONTEND] == 3
    assert counts[Role.DETOKENIZER] == 2
    assert counts[Role.BALANCER] == 1
    assert counts[Role.WORKER] == 0
    names = [process.name for process in topology.processes]
    assert len(set(names)) == len(names)


def test_broadcast_puts_each_worker_into_a_process_of_its_replicas_group():
    topology = _plan(_config(parallel={"data": 2, "executor": "broadcast"}))
    for worker in topology.of_role(Role.WORKER):
        engine = topology.of_role(Role.ENGINE)[worker.index]
        assert worker.group == engine.group
        assert worker.device == "cpu"
        assert engine.device is None
        assert set(engine.binds) <= set(worker.connects)


def test_inline_at_world_size_one():
    topology = _plan(_config())
    assert topology.executor == "inline"
    assert topology.of_role(Role.ENGINE)[0].device == "cpu"


@pytest.mark.parametrize("axis", ["tensor", "pipeline"])
def test_a45_a_replica_on_several_devices_is_refused_by_flag(axis):
    flag = {"tensor": "--tp", "pipeline": "--pp"}[axis]
    with pytest.raises(ConfigError, match=f"{flag} 2"):
        _plan(_config(parallel={axis: 2}))


def test_default_cache_takes_its_share_of_the_memory_that_the_weights_leave():
    config = _config(cache={"kv_memory_share": 0.5}, parallel={"data": 2}, scheduler={"max_num_seqs": 4096})
    free = 2 * SIZE.num_parameters * 4 + 1024 * 16 * 100
    assert _plan(config, free).kv_cache_tokens == 16 * 25


def test_default_cache_is_no_larger_than_all_requests_at_full_length():
    assert _plan(_config(scheduler={"max_num_seqs": 2})).kv_cache_tokens == 2 * SIZE.max_model_len


def test_configured_cache_is_cut_to_whole_blocks():
    assert _plan(_config(cache={"kv_cache_tokens": 100})).kv_cache_tokens == 96


def test_a12_too_little_memory_is_refused_with_both_numbers():
    with pytest.raises(InsufficientMemory, match=r"1\.00 GiB are free.*--kv-cache-tokens"):
        _plan(_config(cache={"kv_cache_tokens": 2**21}), free=GIB)


def test_half_precision_halves_the_memory():
    full, half = (
        _plan(_config(model={"dtype": dtype}, cache={"kv_cache_tokens": 16})) for dtype in ("float32", "bfloat16")
    )
    assert full.processes[0].memory_bytes - half.processes[0].memory_bytes == 2 * SIZE.num_parameters


def test_the_null_model_plans_no_memory_and_no_device():
    topology = _plan(_config(model={"model_impl": "null"}), free=0)
    assert topology.memory_bytes == 0
    assert topology.of_role(Role.ENGINE)[0].device == "none"


def test_every_address_fits_an_ipc_path():
    topology = plan(_config(http={"detokenizers": 64}), SIZE, directory="/" + "x" * 73, free_bytes=GIB, cores=4)
    sockets = {socket for process in topology.processes for socket in process.binds}
    assert max(len(topology.address(socket).removeprefix("ipc://")) for socket in sockets) < 107


def test_threads_are_the_cores_divided_among_the_replicas():
    assert _plan(_config()).threads == 4
    assert _plan(_config(parallel={"data": 3})).threads == 1
    assert _plan(_config(parallel={"data": 8})).threads == 1
    assert _plan(_config(parallel={"data": 8, "threads": 3})).threads == 3
