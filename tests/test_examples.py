"""The example's options are options, and keep what they are meant to show."""

from pathlib import Path

from actorlm.options import merge

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_tree_toml():
    config = merge({}, {}, EXAMPLES / "tree.toml")
    assert config.parallel.data == config.http.frontends == 2
    assert config.model.max_model_len == 4096


def test_two_hosts_toml():
    config = merge({}, {}, EXAMPLES / "two_hosts.toml")
    assert config.lead == "a"
    assert config.parallel.data == sum(len(host.devices) for host in config.hosts.values()) == 2
