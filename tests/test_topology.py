"""The plan of a tree is a function of options and numbers."""

import msgspec
import pytest

from actorlm.checkpoint.description import ModelDescription
from actorlm.config import Config
from actorlm.errors import ConfigError, InsufficientMemory
from actorlm.topology import ONLY, Place, Role, crossings, plan

# 8 layers of 5,000 parameters; embedding and head are one matrix. 1,024 bytes of keys and values a token.
MODEL = ModelDescription(
    path="", format="bytes", name="m", architecture="llama", vocab_size=6000, max_model_len=2048, bos_token_id=None,
    eos_token_ids=(), hidden_size=160, intermediate_size=64, num_layers=8, num_heads=8, num_kv_heads=4, head_dim=4,
    tie_word_embeddings=True, num_parameters=1_000_000,
)  # fmt: skip
GIB = 2**30


def _config(**sections):
    return msgspec.convert(sections, Config)


def _plan(config, free=4 * GIB, model=MODEL):
    return plan(config, model, directory="/run/x", free_bytes=free, cores=4)


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


def test_several_ranks_are_processes_in_the_order_of_their_ranks():
    topology = _plan(_config(parallel={"data": 2, "tensor": 2, "pipeline": 2}))
    assert topology.executor == "broadcast"
    workers = topology.of_role(Role.WORKER)
    assert [worker.name for worker in workers] == [
        f"worker-{replica}-{rank}" for replica in (0, 1) for rank in range(4)
    ]
    for worker in workers:
        assert worker.group == f"engine-{worker.index}"
        assert worker.name.endswith(f"-{worker.place.rank}")
    seats = [(worker.place.pipeline_rank, worker.place.tensor_rank) for worker in workers[:4]]
    assert seats == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [worker.place.is_output for worker in workers] == [False, False, True, False] * 2


def test_each_worker_of_a_launchers_job_has_a_rank_there():
    parallel = {"data": 2, "tensor": 2, "pipeline": 2, "executor": "external"}
    workers = _plan(_config(parallel=parallel)).of_role(Role.WORKER)
    assert [worker.launched_rank for worker in workers] == list(range(8))
    assert [worker.index * 4 + worker.place.rank for worker in workers] == list(range(8))
    topology = _plan(_config(parallel=parallel | {"executor": "broadcast"}))
    assert {process.launched_rank for process in topology.processes} == {None}


def test_a_place_of_its_own_is_the_only_one():
    assert ONLY.is_output
    assert ONLY.is_first_stage
    assert ONLY.is_last_stage
    assert Place(tensor_rank=1, tensor_size=2, pipeline_rank=2, pipeline_size=3).rank == 5


def test_several_ranks_do_not_fit_into_an_engine():
    with pytest.raises(ConfigError, match="--executor inline has one worker, --tp 2 --pp 3 needs 6"):
        _plan(_config(parallel={"tensor": 2, "pipeline": 3, "executor": "inline"}))


def test_each_rank_holds_its_share_of_weights_and_cache():
    whole = _plan(_config(cache={"kv_cache_tokens": 1600}))
    cut = _plan(_config(cache={"kv_cache_tokens": 1600}, parallel={"tensor": 2, "pipeline": 2}))
    ranks = [worker.memory_bytes for worker in cut.of_role(Role.WORKER)]
    matrix = 2 * 6000 * 160  # the second stage's copy of the embedding, half a rank
    assert sum(ranks) - 2 * matrix == pytest.approx(whole.memory_bytes, rel=1e-3)
    assert len(set(ranks[:2])) == len(set(ranks[2:])) == 1


def test_key_value_heads_that_are_copied_take_their_memory():
    one, eight = (_plan(_config(cache={"kv_cache_tokens": 1600}, parallel={"tensor": size})) for size in (1, 8))
    assert eight.memory_bytes - one.memory_bytes == pytest.approx(1600 * 1024, rel=1e-3)


@pytest.mark.parametrize(
    ("parallel", "reason"),
    [
        ({"tensor": 3}, r"--tp 3: the model's 8 attention heads cannot be shared by 3 ranks; --tp may be 1, 2, 4 or 8"),
        ({"pipeline": 9}, r"--pp 9: the model has 8 layers, and a stage needs one; --pp may be 1 to 8"),
    ],
)
def test_a45_a_model_that_cannot_be_cut_so(parallel, reason):
    with pytest.raises(ConfigError, match=reason):
        _plan(_config(parallel=parallel))


def test_the_null_model_is_not_cut_and_runs_in_any_shape():
    assert len(_plan(_config(model={"model_impl": "null"}, parallel={"tensor": 3, "pipeline": 9})).processes) == 31


def test_default_cache_takes_its_share_of_the_memory_that_the_weights_leave():
    config = _config(cache={"kv_memory_share": 0.5}, parallel={"data": 2}, scheduler={"max_num_seqs": 4096})
    free = 2 * MODEL.num_parameters * 4 + 1024 * 16 * 100
    assert _plan(config, free).kv_cache_tokens == 16 * 25


def test_default_cache_is_no_larger_than_all_requests_at_full_length():
    assert _plan(_config(scheduler={"max_num_seqs": 2})).kv_cache_tokens == 2 * MODEL.max_model_len


def test_configured_cache_is_cut_to_whole_blocks():
    assert _plan(_config(cache={"kv_cache_tokens": 100})).kv_cache_tokens == 96


def test_a12_too_little_memory_is_refused_with_both_numbers():
    with pytest.raises(InsufficientMemory, match=r"1\.00 GiB are free.*--kv-cache-tokens"):
        _plan(_config(cache={"kv_cache_tokens": 2**21}), free=GIB)


def test_half_precision_halves_the_memory():
    full, half = (
        _plan(_config(model={"dtype": dtype}, cache={"kv_cache_tokens": 16})) for dtype in ("float32", "bfloat16")
    )
    assert full.memory_bytes == 2 * half.memory_bytes == 4 * MODEL.num_parameters + 16 * 1024


def test_a_cache_of_int8_takes_a_byte_a_number_and_four_a_vector():
    wide, narrow = (_plan(_config(cache={"kv_cache_tokens": 16, "kv_cache_dtype": kind})) for kind in ("auto", "int8"))
    vectors = 1024 // 16  # those of a token, in float32 16 bytes each
    assert wide.memory_bytes - narrow.memory_bytes == 16 * vectors * (16 - (MODEL.head_dim + 4))


def test_the_null_model_plans_no_memory_and_no_device():
    topology = _plan(_config(model={"model_impl": "null"}), free=0)
    assert topology.memory_bytes == 0
    assert topology.of_role(Role.ENGINE)[0].device == "none"


def test_every_address_fits_an_ipc_path():
    topology = plan(_config(http={"detokenizers": 64}), MODEL, directory="/" + "x" * 73, free_bytes=GIB, cores=4)
    sockets = {socket for process in topology.processes for socket in process.binds}
    assert max(len(topology.address(socket).removeprefix("ipc://")) for socket in sockets) < 107


def test_threads_are_the_cores_divided_among_the_workers():
    assert _plan(_config()).threads == 4
    assert _plan(_config(parallel={"data": 3})).threads == 1
    assert _plan(_config(parallel={"data": 8})).threads == 1
    assert _plan(_config(parallel={"tensor": 2})).threads == 2
    assert _plan(_config(parallel={"data": 2, "tensor": 2, "pipeline": 2})).threads == 1
    assert _plan(_config(parallel={"data": 8, "threads": 3})).threads == 3


def _hosts(**devices):
    return {
        name: {"address": f"10.0.0.{number}", "devices": list(range(count))}
        for number, (name, count) in enumerate(devices.items(), 1)
    }


def test_one_machine_has_no_tcp():
    assert _plan(_config(parallel={"data": 2})).tcp == {}
    assert _plan(_config(hosts=_hosts(a=2), parallel={"data": 2})).tcp == {}


def test_sockets_that_another_host_reaches_are_tcp_with_ports_in_the_order_of_the_plan():
    topology = _plan(_config(hosts=_hosts(a=1, b=1), parallel={"data": 2}, sockets={"ports": "7000-7003"}))
    assert topology.lead == "a"
    assert topology.tcp == {
        "supervisor": "tcp://10.0.0.1:7000",
        "detokenizer-0": "tcp://10.0.0.1:7001",
        "detokenizer-0-tokens": "tcp://10.0.0.1:7002",
        "balancer": "tcp://10.0.0.1:7003",
    }
    assert [process.host for process in topology.of_role(Role.ENGINE)] == ["a", "b"]
    assert {process.name for process in topology.on_host("b")} == {"engine-1"}
    assert topology.bound_on("a") == topology.tcp
    assert topology.bound_on("b") == {}
    assert topology.address("frontend-0") == "ipc:///run/x/frontend-0"


def test_all_hosts_plan_the_same_addresses_whatever_they_measure():
    config = _config(hosts=_hosts(a=2, b=3), parallel={"data": 2, "tensor": 2})
    here, there = (
        plan(config, MODEL, directory=f"/{on}", free_bytes=free, cores=cores, on=on)
        for on, free, cores in (("a", GIB, 4), ("b", 2 * GIB, 16))
    )
    assert here.tcp == there.tcp
    assert (here.threads, there.threads) == (2, 8)
    assert [process.host for process in here.processes] == [process.host for process in there.processes]


def test_a_host_with_http_has_frontends_and_detokenizers_which_belong_together():
    hosts = _hosts(a=1, b=1)
    hosts["a"]["http"], hosts["b"]["http"] = False, True
    topology = _plan(_config(hosts=hosts, parallel={"data": 2}, http={"frontends": 2}))
    edge = [*topology.of_role(Role.FRONTEND), *topology.of_role(Role.DETOKENIZER)]
    assert {process.host for process in edge} == {"b"}
    assert topology.of_role(Role.BALANCER)[0].host == "a"
    hosts["a"]["http"] = True
    topology = _plan(_config(hosts=hosts, parallel={"data": 2}, http={"frontends": 2, "detokenizers": 2}))
    assert [(one.index, one.host, one.connects[2:]) for one in topology.of_role(Role.FRONTEND)] == [
        (0, "a", ("detokenizer-0", "detokenizer-1")),
        (1, "a", ("detokenizer-0", "detokenizer-1")),
        (2, "b", ("detokenizer-2", "detokenizer-3")),
        (3, "b", ("detokenizer-2", "detokenizer-3")),
    ]
    hosts["a"]["http"] = hosts["b"]["http"] = False
    with pytest.raises(ConfigError, match="no host has HTTP"):
        _plan(_config(hosts=hosts))


def test_ranks_that_are_apart_meet_at_the_first_ones_host():
    topology = _plan(_config(hosts=_hosts(a=1, b=1), parallel={"tensor": 2}))
    assert topology.meeting("engine-0", 7).startswith("tcp://10.0.0.1:")
    assert topology.of_role(Role.ENGINE)[0].host == "a"
    assert {"engine-0-workers", "engine-0-steps", "engine-0-results"} < set(topology.tcp)
    assert crossings(topology) == [
        "the tensor ranks of engine-0, stage 0, are on hosts a, b: each layer waits for the network twice"
    ]
    together = _plan(_config(hosts=_hosts(a=2, b=1), parallel={"tensor": 2}))
    assert together.meeting("engine-0", 7) == "/run/x/engine-0-meeting-7"
    assert crossings(together) == []
    stages = _plan(_config(hosts=_hosts(a=1, b=1), parallel={"pipeline": 2}))
    assert crossings(stages) == []


def test_memory_is_that_of_one_host():
    config = _config(hosts=_hosts(a=1, b=1), parallel={"data": 2})
    one = _plan(_config())
    assert _plan(config).kv_cache_tokens == one.kv_cache_tokens
    with pytest.raises(InsufficientMemory, match=r"1 worker\(s\) on host b need"):
        plan(config, MODEL, directory="/x", free_bytes=2**20, cores=4, on="b")


def test_pins_are_of_sockets_of_the_tree_and_are_no_longer_dealt():
    config = _config(pins={"balancer": "tcp://127.0.0.1:7000", "frontend-0": "tcp://[::1]:7001"})
    assert _plan(config).tcp == config.pins
    hosts = _config(hosts=_hosts(a=1, b=1), parallel={"data": 2}, pins={"balancer": "tcp://10.0.0.1:7000"})
    assert _plan(hosts).tcp["supervisor"] == "tcp://10.0.0.1:7001"
    with pytest.raises(ConfigError, match=r"sockets\.balancr is no socket.*did you mean sockets\.balancer"):
        _plan(_config(pins={"balancr": "tcp://127.0.0.1:7000"}))


def test_too_few_ports_are_counted():
    with pytest.raises(ConfigError, match="'7000-7002': host a needs 4 ports, and 3 of these are free"):
        _plan(_config(hosts=_hosts(a=1, b=1), parallel={"data": 2}, sockets={"ports": "7000-7002"}))


@pytest.mark.parametrize("executor", ["ray", "external"])
def test_who_starts_workers_elsewhere_does_so_alone(executor):
    with pytest.raises(ConfigError, match=f"--executor {executor} has workers of one machine"):
        _plan(_config(hosts=_hosts(a=1), parallel={"executor": executor}))
