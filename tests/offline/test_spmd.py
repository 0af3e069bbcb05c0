"""One program on every rank: processes that a launcher started, which is this test or torchrun."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import FAMILIES

from actorlm import LLM, SamplingParams
from actorlm.errors import ConfigError

PROGRAM = Path(__file__).parent / "spmd_program.py"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    FAMILIES["llama"](directory)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return str(directory)


def tokenizer():
    words = {f"w{i}": i for i in range(300)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w1"},
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(model, what, size, *, world_size=None, **options):
    """(status, lines of JSON) of each rank."""
    port = free_port()
    ranks = []
    for rank in range(size):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size or size),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, str(PROGRAM), model, what, json.dumps(options)]
        ranks.append(
            subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    results = []
    for process in ranks:
        out, _ = process.communicate(timeout=100)
        results.append((process.returncode, [json.loads(line) for line in out.splitlines()]))
    return results


@pytest.mark.parametrize("shape", [{"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2, "pipeline_layers": "1,3"}], ids=str)
def test_all_ranks_get_the_outputs_of_one_device(tiny, shape):
    size = shape.get("tp", 1) * shape.get("pp", 1)
    results = launch(tiny, "equal", size, **shape)
    assert [status for status, _ in results] == [0] * size
    outputs = [lines[-1]["result"] for _, lines in results]
    assert all(output == outputs[0] for output in outputs)
    greedy, drawn, places = outputs[0]
    with LLM(tiny, kv_cache_tokens=1024, max_num_seqs=8, threads=1) as llm:
        params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        alone = llm.generate([[1, 2, 3], [7] * 40, [5, 6]], params, use_tqdm=False)
    assert greedy == [output.outputs[0].token_ids for output in alone]
    assert drawn != greedy
    assert places == [12] * 3


def test_torchrun_starts_it_too(tiny):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    arguments = [str(free_port()), str(PROGRAM), tiny, "equal", json.dumps({"tp": 2})]
    done = subprocess.run([*command, *arguments], capture_output=True, timeout=110, check=True, text=True)
    first, end = json.JSONDecoder().raw_decode(done.stdout)
    second, _ = json.JSONDecoder().raw_decode(done.stdout[end:].strip())  # lines of two processes
    assert first == second
    assert len(first["result"][0]) == 3


def test_ranks_that_make_other_calls_are_told(tiny):
    (first, _), (second, lines) = launch(tiny, "part", 2, tp=2)
    assert second == 1
    assert lines[-1]["error"] == "ExecutorFailed"
    assert "rank 1 runs another step 0 than rank 0; all ranks must make the same calls" in lines[-1]["message"]
    assert first in (0, 1)


@pytest.mark.parametrize("shape", [{"tp": 2}, {"pp": 2}], ids=str)
def test_a_rank_that_dies_ends_the_others(tiny, shape):
    (status, lines), (dead, _) = launch(tiny, "die", 2, **shape)
    assert (status, dead) == (1, 3)
    assert lines[-2]["waited_s"] < 20
    assert lines[-1]["error"] == "ExecutorFailed"
    assert "rank 1" in lines[-1]["message"]


def test_another_number_of_ranks_is_refused(tiny):
    ((status, lines),) = launch(tiny, "equal", 1, world_size=3, tp=2)
    assert status == 1
    assert "WORLD_SIZE=3 ranks; tp 2 and pp 1 need 2" in lines[-1]["message"]


def test_a_missing_variable_is_named(tiny, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="RANK is not set; start the ranks with torchrun"):
        LLM(tiny, tp=2, executor="external")
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ConfigError, match="RANK is 'first'; it must be a number"):
        LLM(tiny, tp=2, executor="external")


def test_several_ranks_need_a_launcher(tiny):
    with pytest.raises(ConfigError, match='tp is 2, and a process has one worker: .* pass executor="external"'):
        LLM(tiny, tp=2)
