"""Flags, variables and TOML keys are one set of options."""

import pytest

from actorlm.config import Config
from actorlm.errors import ConfigError
from actorlm.options import OPTIONS, merge


def test_no_two_options_share_a_flag_or_variable():
    assert len({option.flag for option in OPTIONS}) == len(OPTIONS)
    assert len({option.variable for option in OPTIONS}) == len(OPTIONS)


def test_every_option_has_help():
    assert all(option.help for option in OPTIONS)


def test_nothing_given_is_the_default():
    assert merge({}, {}, None) == Config()


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path):
    file = tmp_path / "tree.toml"
    file.write_text("[http]\nport = 1\nfrontends = 2\n[parallel]\ndata = 3\n")
    config = merge({"port": "3"}, {"ACTORLM_PORT": "2", "ACTORLM_FRONTENDS": "4"}, file)
    assert (config.http.port, config.http.frontends, config.parallel.data) == (3, 4, 3)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"dp": "0"}, "--dp .*parallel.data.*'0'.*>= 1"),
        ({"dtype": "int3"}, "--dtype.*'int3'.*float32"),
        ({"port": "http"}, "--port.*'http'"),
        ({"kv_cache_tokens": "1"}, "--kv-cache-tokens.*>= 16"),
        ({"api_key": ""}, "--api-key.*empty"),
        ({"api_key": " \n"}, "--api-key.*empty"),
        ({"api_key": "two words"}, "--api-key.*letters and digits"),
        ({"api_key": "with its line\n"}, "--api-key.*letters and digits"),
        ({"api_key": "schl\u00fcssel"}, "--api-key.*letters and digits"),
    ],
)
def test_a_bad_value_is_named_with_its_option(flags, named):
    with pytest.raises(ConfigError, match=named):
        merge(flags, {}, None)


def test_an_unknown_variable_suggests_the_nearest():
    with pytest.raises(ConfigError, match="ACTORLM_PROT is no option.*ACTORLM_PORT"):
        merge({}, {"ACTORLM_PROT": "1"}, None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[http]\nprot = 1", "http.prot; did you mean http.port"),
        ("[htp]\nport = 1", "htp.port"),
        ("port = 1", "port"),
        ("[http", "tree.toml"),
    ],
)
def test_a_bad_file_is_named_with_its_key(tmp_path, text, named):
    file = tmp_path / "tree.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=named):
        merge({}, {}, file)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"^[^:]*/no\.toml: No such file or directory$"):
        merge({}, {}, tmp_path / "no.toml")
