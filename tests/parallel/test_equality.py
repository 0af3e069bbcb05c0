"""The table of docs/equality.md: each family on each shape gives the tokens of one device, which are transformers'.

`python tests/parallel/test_equality.py` writes the page. The processes that stand for devices are started once.
"""

import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/equality.md"
sys.path += [str(ROOT / "tests" / folder) for folder in ("execution", "models")]

from rank_pool import RankPool  # noqa: E402

SHAPES = {
    "tp2": {"tensor": 2},
    "tp4": {"tensor": 4},
    "pp2": {"pipeline": 2},
    "tp2 pp2": {"tensor": 2, "pipeline": 2},
    "dp2 tp2": {"tensor": 2, "data": 2},
}
COUNT = 16
LENGTHS = (1, 3, 17, 20, 33, 64)
MARGIN = 1e-3
"""Prompts whose best two logits come closer than this anywhere are not used."""


def reference(model, prompts):
    """What transformers generates for each prompt; None where two logits nearly tie."""
    import torch

    answers = []
    for prompt in prompts:
        ids, clear = list(prompt), True
        with torch.inference_mode():
            for _ in range(COUNT):
                best = model(torch.tensor([ids])).logits[0, -1].topk(2)
                clear = clear and bool(best.values[0] - best.values[1] > MARGIN)
                ids.append(int(best.indices[0]))
        answers.append(ids[len(prompt) :] if clear else None)
    return answers


def some_prompts(model):
    """Prompts and their answers."""
    source = random.Random(11)
    prompts = [[source.randrange(1, model.config.vocab_size) for _ in range(length)] for length in LENGTHS]
    pairs = zip(prompts, reference(model, prompts), strict=True)
    return [(prompt, answer) for prompt, answer in pairs if answer is not None]


def generate(pool, description, prompts, *, data=1, **shape):
    """What the shape generates; each of several replicas has its share of the prompts."""
    from driving import Driver

    answers = [None] * len(prompts)
    size = shape.get("tensor", 1) * shape.get("pipeline", 1)
    for replica in range(data):
        runner = pool.replica(description, **shape, first=replica * size)
        answers[replica::data] = Driver(runner, 128).generate(prompts[replica::data], COUNT, chunk=24)
    return answers


def row(pool, family, directory):
    """A row of the table: tokens that are equal, for one device against transformers, then for each shape."""
    from tiny_models import FAMILIES

    from actorlm.checkpoint.config_json import describe_directory

    model = FAMILIES[family](directory)
    description = describe_directory(directory, family, weights=True)
    pairs = some_prompts(model)
    prompts = [prompt for prompt, _ in pairs]
    results = {"one device": generate(pool, description, prompts)}
    expected = [answer for _, answer in pairs]
    results |= {name: generate(pool, description, prompts, **shape) for name, shape in SHAPES.items()}
    return [_share(answers, expected) for answers in results.values()]


def _share(answers, expected):
    equal = sum(
        a == b for ours, theirs in zip(answers, expected, strict=True) for a, b in zip(ours, theirs, strict=True)
    )
    return f"{equal} of {COUNT * len(expected)}"


def page(rows):
    """The page with these rows, by family."""
    lengths = f"{', '.join(map(str, LENGTHS[:-1]))} and {LENGTHS[-1]}"
    lines = [
        "# Equality",
        "",
        "Greedy tokens that are equal, on tiny random models in float32 with the native kernels: one device beside",
        f"transformers, and every shape beside transformers, too. Prompts of {lengths} tokens, {COUNT} tokens",
        f"each, computed in chunks of 24; a prompt is left out if its best two logits come closer than {MARGIN:g}",
        "anywhere. Each rank is a process of its own.",
        "",
        "| family | one device | " + " | ".join(SHAPES) + " |",
        "|" + " --- |" * (2 + len(SHAPES)),
        *(f"| {family} | {' | '.join(cells)} |" for family, cells in rows.items()),
        "",
        "`python tests/parallel/test_equality.py` makes this page, and a test fails unless it comes out the same, with",
        "all tokens equal.",
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def pool():
    made = RankPool(4)
    yield made
    made.close()


FAMILY_NAMES = ("llama", "mistral", "qwen2", "qwen3")


@pytest.fixture(scope="module")
def rows():
    """Gathered as families are tested."""
    return {}


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_family_on_all_shapes(pool, rows, family, tmp_path):
    rows[family] = row(pool, family, tmp_path)
    for cell in rows[family]:
        equal, total = cell.split(" of ")
        assert equal == total
        assert int(total) >= 3 * COUNT, "too few prompts are clear"


def test_every_family_is_tested_and_the_page_is_fresh(rows):
    from tiny_models import FAMILIES

    assert set(FAMILIES) == set(FAMILY_NAMES)
    if rows.keys() == set(FAMILY_NAMES):
        assert PAGE.read_text() == page(rows), "run python tests/parallel/test_equality.py"


if __name__ == "__main__":
    import tempfile

    devices = RankPool(4)
    with tempfile.TemporaryDirectory() as folder:
        table = {}
        for name in FAMILY_NAMES:
            (Path(folder) / name).mkdir()
            table[name] = row(devices, name, Path(folder) / name)
            print(name, table[name])
    PAGE.write_text(page(table))
    devices.close()
