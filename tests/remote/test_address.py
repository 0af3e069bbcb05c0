"""Base URLs, as people write them."""

import pytest

from actorlm.errors import ConfigError
from actorlm.remote.address import Address, parse


@pytest.mark.parametrize(
    ("url", "address", "netloc"),
    [
        ("http://127.0.0.1:8000", Address(secure=False, host="127.0.0.1", port=8000, prefix=""), "127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", Address(secure=False, host="127.0.0.1", port=8000, prefix=""), "127.0.0.1:8000"),
        ("https://a.example/proxy/v1", Address(secure=True, host="a.example", port=443, prefix="/proxy"), "a.example"),
        ("http://[::1]:80", Address(secure=False, host="::1", port=80, prefix=""), "[::1]"),
    ],
)
def test_a_base_url(url, address, netloc):
    assert parse(url) == address
    assert parse(url).netloc == netloc


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000", "ipc:///tmp/x", "http://", "http://a:99999", "http://a:b", "http://a?b=c", "http://u:p@a",
        "http://a\r\nX: y", "http://a/b c", "http://[::1", "",
    ],
)  # fmt: skip
def test_what_is_none(url):
    with pytest.raises(ConfigError, match="--url"):
        parse(url)
