"""A whole model on the kernels for GPUs, driven by the runner, in Triton's interpreter: the tokens of plain torch."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from actorlm.kernels.backend import Gpu
from actorlm.kernels.gpu import paged_attention, split_attention

ROWS = 5
EXECUTION = str(Path(__file__).parents[2] / "execution")


@pytest.fixture(scope="module")
def driving():
    sys.path.insert(0, EXECUTION)
    try:
        import driving

        yield driving
    finally:
        sys.path.remove(EXECUTION)


@pytest.fixture(scope="module", params=["grouped-tied", "biases"])
def model(request, driving, tmp_path_factory):
    return driving.make_tiny(request.param, tmp_path_factory.mktemp(request.param), num_hidden_layers=2)[1]


@pytest.fixture(autouse=True)
def attentions(monkeypatch):
    """How often each kernel of attention is launched."""
    count = Counter()
    for module in (paged_attention, split_attention):
        name = module.__name__.rpartition(".")[2]
        launch = getattr(module, name)

        def counting(*args, name=name, launch=launch):
            count[name] += 1
            return launch(*args)

        monkeypatch.setattr(module, name, counting)
    return count


def on_gpu(driving, description, monkeypatch):
    gpu = Gpu(torch.device("cpu"), multiprocessors=4, card="")
    monkeypatch.setattr("actorlm.execution.runner.choose_backend", lambda *_: gpu)
    return driving.make_runner(description, device="cuda", max_num_seqs=ROWS, max_model_len=64)


def test_tokens_of_prefill_chunks_and_decoding(driving, model, monkeypatch, attentions):
    prompts = driving.random_prompts(3, 5, 20, 1)  # with three rows, graphs of four are padded
    expected = driving.Driver(driving.make_runner(model, kernels="torch"), 128).generate(prompts, 3, chunk=16)
    runner = on_gpu(driving, model, monkeypatch)
    attentions.clear()  # of recording
    assert driving.Driver(runner, 128, shuffle=1).generate(prompts, 3, chunk=9) == expected
    steps, layers = {"paged_attention": 3, "split_attention": 2}, 2
    assert attentions == {name: count * layers for name, count in steps.items()}


def test_logits_of_rows_that_decode_beside_a_prompt(driving, model, monkeypatch):
    runners = driving.make_runner(model, kernels="torch"), on_gpu(driving, model, monkeypatch)
    made = []
    for runner in runners:
        driver = driving.Driver(runner, 128)
        one, other = driving.random_prompts(4, 18, 7)
        driver.add(0, [*one, 0])
        driver.add(1, [*other, 0])
        first = driving.step_logits(driver, [(0, 17)])
        made.append(torch.cat([*first, *driving.step_logits(driver, [(0, 1), (1, 7)])]))
    torch.testing.assert_close(made[1], made[0], atol=2e-4, rtol=1e-4)


def test_graphs_of_all_sizes(driving, model, monkeypatch):
    """Rows come and go, so that padding lies where rows have been."""
    runner = on_gpu(driving, model, monkeypatch)
    assert list(runner._graphs._graphs) == [1, 2, 4, 5]
    made = {}
    for each, name in ((driving.make_runner(model, kernels="torch"), "torch"), (runner, "gpu")):
        driver, made[name] = driving.Driver(each, 128), []
        for slot, prompt in enumerate(driving.random_prompts(6, 3, 9, 17, 2, 5)):
            driver.add(slot, prompt)
        made[name].append(driver.step([(slot, driver.left(slot)) for slot in range(5)]))
        for slots in (range(5), [4], [1, 3], [0, 2, 4], [3, 0, 1, 2]):
            made[name].append(driver.step([(slot, 1) for slot in slots]))
    assert made["gpu"] == made["torch"]
