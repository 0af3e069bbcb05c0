"""The options of an LLM are those of a replica, and the page about it names them all."""

import re
from pathlib import Path

import msgspec
import pytest

from actorlm.config import Config
from actorlm.errors import ConfigError
from actorlm.offline.options import OFFLINE_OPTIONS, check_offline, offline_config

PAGE = Path(__file__).parents[2] / "docs/offline.md"


def test_options_reach_the_config():
    config = offline_config("some.gguf", {"max_num_seqs": 3, "prefix_caching": False, "threads": None})
    assert (config.model.path, config.scheduler.max_num_seqs, config.cache.prefix_caching) == ("some.gguf", 3, False)
    assert offline_config(None, {}) == Config()


def test_names_are_those_of_the_fields():
    assert {option.parameter for option in OFFLINE_OPTIONS} == {option.field for option in OFFLINE_OPTIONS} - {
        "path"
    } | {"model"}


def test_the_page_names_every_option():
    words = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert {option.parameter for option in OFFLINE_OPTIONS} - {"model"} <= words


@pytest.mark.parametrize(
    ("parallel", "named"), [({"data": 2}, "--dp 2"), ({"executor": "broadcast"}, "--executor broadcast")]
)
def test_what_one_process_cannot_follow(parallel, named):
    with pytest.raises(ConfigError, match=named):
        check_offline(msgspec.convert({"parallel": parallel}, Config))
