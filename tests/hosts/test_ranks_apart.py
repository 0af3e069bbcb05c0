"""A replica on two hosts computes what one device computes."""

import pytest
import tiny_llama as tiny
from hostile import network_sockets
from tree import Tree

PROMPTS = ["hello", "one two three four five six seven eight", "x"]


def _answers(tree):
    return [tree.complete(prompt, max_tokens=12, temperature=0, logprobs=1)["choices"][0] for prompt in PROMPTS]


@pytest.mark.parametrize("shape", [{"tensor": 2}, {"pipeline": 2}])
def test_tokens_are_those_of_one_device(up, tmp_path, shape):
    path = tiny.write(tmp_path / "tiny-llama", seed=1)
    with Tree(path, "--cpu-kernels", "torch", "--dtype", "float32") as alone:
        expected = _answers(alone.wait_ready(60))
    model = f'path = "{path}"\ndtype = "float32"\ncpu_kernels = "torch"'
    ((dimension, size),) = shape.items()
    up.write({"a": "devices = [0]", "b": "devices = [0]"}, f"[parallel]\n{dimension} = {size}\n", model=model)
    a, b = up("a"), up("b")
    for answer, one in zip(_answers(a.wait_ready(60)), expected, strict=True):
        assert answer["text"] == one["text"]
        assert answer["logprobs"]["token_logprobs"] == pytest.approx(one["logprobs"]["token_logprobs"], abs=1e-4)
    assert b.pid("worker-0-1")
    others = network_sockets(a) - {("tcp", "0.0.0.0", 8000)}
    assert {(protocol, host) for protocol, host, _ in others} == {("tcp", "10.77.0.1")}, "e02: as in the file"
    assert {(protocol, host) for protocol, host, _ in network_sockets(b)} == {("tcp", "10.77.0.2")}
    if "tensor" in shape:
        assert "waits for the network" in a.log
