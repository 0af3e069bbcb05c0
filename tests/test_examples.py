"""The example's options are options, and keep what they are meant to show."""

from pathlib import Path

from actorlm.options import merge

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_tree_toml():
    config = merge({}, {}, EXAMPLES / "tree.toml")
    assert config.parallel.data == config.http.frontends == 2
    assert config.model.max_model_len == 4096
