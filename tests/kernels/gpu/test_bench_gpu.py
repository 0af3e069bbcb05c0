"""`python -m actorlm.bench gpu`, all but the GPU: each stage in Triton's interpreter, and what a failure leaves."""

import dataclasses
import importlib
import json
import subprocess
import sys

import pytest
import torch

from actorlm.bench.gpu import check, command, serve, timings
from actorlm.bench.gpu.clock import Spread, WallClock, spread
from actorlm.bench.gpu.sizes import SMALL
from actorlm.bench.gpu.stage import Machine, Results, run


@pytest.fixture
def machine():
    torch.manual_seed(0)
    return Machine(torch.device("cpu"), "", 4, WallClock(repeats=1), SMALL)


@pytest.mark.parametrize("name", command.STAGES)
def test_each_stage(machine, name):
    lines = []
    results = run({name: command.STAGES[name]}, machine, 1e9, lines.append)
    assert results.failures == [], results.failures
    assert len(results.rows) == len(lines) > 1
    assert {row["stage"] for row in results.rows} == {name}


def test_a_wrong_kernel_is_told_and_the_others_go_on(machine, monkeypatch):
    from actorlm.kernels.gpu import silu_mul

    monkeypatch.setattr(silu_mul, "silu_mul", lambda x: x[:, : x.shape[1] // 2])
    results = run({"check": check.cases}, machine, 1e9, lambda _: None)
    (failure,) = results.failures
    assert failure["case"] == "silu(gate) * up"
    assert "of the largest number" in failure["error"]
    assert len(results.rows) > 5


@pytest.mark.parametrize(
    ("module", "name", "case"),
    [("rope_and_store", "rope_and_store", "rotation and storing"), ("add_rms_norm", "add_rms_norm", "add + RMSNorm")],
)
def test_what_a_kernel_changes_in_place_is_compared(machine, monkeypatch, module, name, case):
    """Rotated queries, and the sum in the residual: a kernel that gets only the rest right fails."""
    owner = importlib.import_module(f"actorlm.kernels.gpu.{module}")
    launch = getattr(owner, name)

    def forgetful(*args):
        changed = args[0] if name == "rope_and_store" else args[1]
        before = changed.clone()
        made = launch(*args)
        changed.copy_(before)
        return made

    monkeypatch.setattr(owner, name, forgetful)
    failures = run({"check": check.cases}, machine, 1e9, lambda _: None).failures
    assert [failure["case"] for failure in failures] == [case]


@pytest.mark.parametrize(
    ("card", "has"), [("", False), ("sm_75", False), ("sm_86", False), ("sm_89", True), ("sm_90", True)]
)
def test_which_cards_have_fp8(machine, card, has):
    assert dataclasses.replace(machine, card=card).has_fp8 is has


def test_a_cache_that_is_too_large_is_told(machine, monkeypatch):
    monkeypatch.setattr(timings, "MOST_CACHE_BYTES", 0)
    results = run({"attention": timings.attention}, machine, 1e9, lambda _: None)
    assert ["left_out" in row for row in results.rows if row["case"].startswith("decode")] == [True, True]


def test_what_has_no_time_left_is_told(machine):
    results = run({"check": check.cases}, machine, -1.0, lambda _: None)
    assert results.rows == []
    assert "check: greedy choice" in results.left_out


def test_a_stage_that_cannot_begin_is_told(machine):
    def broken(_):
        raise RuntimeError("nothing here")
        yield

    results = run({"broken": broken, "products": timings.products}, machine, 1e9, lambda _: None)
    assert [failure["error"] for failure in results.failures] == ["RuntimeError: nothing here"]
    assert results.rows


def test_errors_are_relative_and_must_be_finite():
    assert check.compared(torch.tensor([2.0, 1.0]), torch.tensor([2.0, 1.5]), 0.3)["relative_error"] == 0.25
    with pytest.raises(AssertionError, match="0.25 of the largest number"):
        check.compared(torch.tensor([2.0, 1.0]), torch.tensor([2.0, 1.5]), 0.2)
    with pytest.raises(AssertionError, match="not finite"):
        check.compared(torch.tensor([torch.nan]), torch.tensor([1.0]), 1.0)


def test_the_report_is_json(machine):
    assert json.loads(json.dumps(command.report(Results(), 1.0)))["torch"] == torch.__version__
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert command.main([]) == 2
    assert "sees no GPU" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--stages", "check,dance"])
    assert "dance is none of check, attention, products, serve" in capsys.readouterr().err


def test_kernels_need_torch_and_triton_alone():
    code = (
        "import sys\n"
        "for name in ('msgspec', 'zmq', 'litestar', 'structlog', 'psutil'): sys.modules[name] = None\n"
        "import actorlm.bench.gpu.command, actorlm.kernels.gpu.paged_attention, actorlm.kernels.gpu.experts\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_model_is_as_large_as_it_is_told(machine):
    from actorlm.bench.gpu.random_model import RandomModel

    model = RandomModel(machine, 2, 20)
    head, size = SMALL.vocab * SMALL.hidden, SMALL.head_dim
    heads = SMALL.heads + 2 * SMALL.kv_heads
    layer = SMALL.hidden * (heads + SMALL.heads) * size + 3 * SMALL.hidden * SMALL.intermediate + 2 * SMALL.hidden
    assert model.weight_bytes == 4 * (head + SMALL.layers * layer + SMALL.hidden)
    assert model.cache_bytes_per_row == 4 * 20 * 2 * SMALL.kv_heads * size * SMALL.layers
    assert serve.CONTEXT > 20
