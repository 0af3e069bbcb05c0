"""The example runs, here with the null model."""

import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples/offline.py"


def test_the_example_prints_two_texts_and_three_choices(capsys):
    spec = importlib.util.spec_from_file_location("offline_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(model_impl="null")
    lines = capsys.readouterr().out.splitlines()
    assert [line[:2] for line in lines] == ["'T", "'W", "0:", "1:", "2:"]
