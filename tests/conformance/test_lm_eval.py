"""lm-eval over HTTP beside lm-eval with transformers, on the same weights: a random Llama, in float32."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from typing import NamedTuple

import pytest
import tiny_llama as tiny
from tree import PATIENCE, Tree

pytestmark = [
    pytest.mark.serving,
    pytest.mark.timeout(300 * PATIENCE),
    pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="run `tox -e conformance-lm-eval`"),
]

TOLERANCE = 1e-3
WORDS = ["the", "of", "and", "naïve", "λ", "東京", "🦊", "tree", "stream", "42", "3.14", "'quoted'", "token;", "\n\n"]

TASK = {"dataset_path": "json", "test_split": "test", "target_delimiter": ""}
PAIRS = {
    "output_type": "multiple_choice", "metric_list": [{"metric": "acc"}],
    "doc_to_text": "{{context}}", "doc_to_choice": "{{choices}}", "doc_to_target": 0,
}  # fmt: skip
ROLLING = {
    "output_type": "loglikelihood_rolling", "metric_list": [{"metric": "bits_per_byte"}],
    "doc_to_text": "", "doc_to_target": "{{text}}",
}  # fmt: skip


class Found(NamedTuple):
    """Log-likelihoods of the pairs, whether each is what greedy decoding gives, and log-likelihoods of the texts."""

    pairs: list
    greedy: list
    texts: list


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random Llama, with what transformers needs to load its tokenizer."""
    directory = tiny.write(tmp_path_factory.mktemp("noise") / "tiny", seed=4, max_position_embeddings=1024)
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return directory


@pytest.fixture(scope="module")
def tree(model):
    with Tree(model, "--dtype", "float32", "--max-num-batched-tokens", 64) as tree:
        yield tree.wait_ready()


@pytest.fixture(scope="module")
def tasks(tree, tmp_path_factory):
    """A folder with two tasks. Every first choice is what follows most likely, where that is a character."""
    directory, draw = tmp_path_factory.mktemp("tasks"), random.Random(6)

    def words(most):
        return " ".join([draw.choice(WORDS[:-1]), *draw.choices(WORDS, k=draw.randrange(most))]).rstrip()

    pairs = []
    for context in [words(40) for _ in range(20)]:
        likely = tree.text(context, max_tokens=1, temperature=0)
        choices = [likely if likely.isascii() else "?", *(words(8) for _ in range(3))]
        pairs.append({"context": context, "choices": choices})
    write(directory, "pairs", PAIRS, pairs)
    write(directory, "rolling", ROLLING, [{"text": words(50)} for _ in range(8)])
    return directory


def write(directory, name, task, documents):
    data = directory / f"{name}.json"
    data.write_text(json.dumps(documents))
    whole = TASK | task | {"task": name, "dataset_kwargs": {"data_files": {"test": str(data)}}}
    (directory / f"{name}.yaml").write_text(json.dumps(whole))  # JSON is YAML


def evaluate(tasks, output, kind, batch_size=1, **arguments):
    """Runs lm-eval and returns what it found."""
    done = subprocess.run(
        [
            sys.executable, "-m", "lm_eval", "run", "--model", kind, "--device", "cpu", "--batch_size", str(batch_size),
            "--model_args", ",".join(f"{name}={value}" for name, value in arguments.items()),
            "--tasks", "pairs", "rolling", "--include_path", tasks, "--output_path", output, "--log_samples",
        ],
        env=os.environ | {"HF_HOME": str(output / "hf"), "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, timeout=90 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    pairs = responses(output, "pairs")
    texts = responses(output, "rolling")
    return Found([float(value) for value, _ in pairs], [one for _, one in pairs], list(map(float, texts)))


def responses(output, task):
    """What the model answered to a task's requests, in their order, as lm-eval writes it down."""
    [file] = output.rglob(f"samples_{task}_*.jsonl")
    samples = sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    return [response for sample in samples for [response] in sample["resps"]]


@pytest.fixture(scope="module")
def reference(model, tasks, tmp_path_factory):
    return evaluate(tasks, tmp_path_factory.mktemp("hf"), "hf", pretrained=model, dtype="float32")


@pytest.mark.parametrize("how", [{}, {"batch_size": 4, "num_concurrent": 4}], ids=["one by one", "batches at once"])
def test_loglikelihoods(model, tree, tasks, reference, tmp_path, how):
    where = {"model": tree.model, "base_url": f"{tree.url}/v1/completions", "tokenizer": model}
    found = evaluate(tasks, tmp_path, "local-completions", **where, **how)
    assert len(found.pairs) == 80
    assert found.pairs == pytest.approx(reference.pairs, rel=0, abs=TOLERANCE)
    assert found.greedy == reference.greedy
    assert set(found.greedy) == {"True", "False"}
    assert found.texts == pytest.approx(reference.texts, rel=0, abs=TOLERANCE)
