"""C08, C22: bodies that are no JSON, too large, or too much."""

import gzip
import json
import re

import httpx
import pytest
from exchange import PATHS
from hostile import head, post, raw_http, status_of
from refusals import error_of
from tree import Tree, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

COMPLETIONS, CHAT = PATHS
JSON = {"content-type": "application/json"}
M = 2**20


def sent(tree, path, content):
    return tree.client.post(path, content=content, headers=JSON)


# C08.

VALID = json.dumps({"model": "null", "messages": [{"role": "user", "content": "hi"}]}).encode()
DEEP = b'{"model":"null","metadata":'
MALFORMED = {
    "nothing": b"",
    "a comma": VALID[:-1] + b",}",
    "an array": b"[]",
    "null": b"null",
    "a text": b'"x"',
    "a number": b"1",
    "a key twice": b'{"model":"null",' + VALID[1:],
    "half": VALID[:-9],
    "two": VALID * 2,
    "a comment": b"/* x */" + VALID,
    "single quotes": b"{'model':'null'}",
    "compressed": gzip.compress(VALID),
    "brackets": b"[" * 200_000,
    "braces": b'{"a":' * 200_000,
    "deep in a field": DEEP + b"[" * 200_000,
    "deep and whole": DEEP + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
}


@pytest.mark.parametrize("what", MALFORMED)
def test_c08_malformed(null_tree, what):
    for path in PATHS:
        error_of(sent(null_tree, path, MALFORMED[what]))
    null_tree.sentinel()
    assert "RecursionError" not in null_tree.log


def test_c08_another_type_or_coding(null_tree):
    for headers in (
        {},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; boundary=x"},
        JSON | {"content-encoding": "gzip"},
    ):
        error = error_of(null_tree.client.post(CHAT, content=gzip.compress(VALID), headers=headers), 415)
        assert error["code"] == "unsupported_media_type"


def test_c08_a_body_shorter_than_it_says(null_tree):
    """The client sends half and waits, or leaves. Nobody else waits with it, and nothing of it is an error of ours."""
    half = post(CHAT, VALID)[:-20]
    assert raw_http(null_tree, half, seconds=0.3) == b""
    null_tree.sentinel()
    assert "Traceback" not in null_tree.log


@pytest.mark.long
def test_c08_a_body_that_stands_still(null_tree):
    answer = raw_http(null_tree, post(CHAT, VALID)[:-20], seconds=60)
    assert status_of(answer) == 408
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


def test_c08_an_upgrade_that_is_not_made_leaves_the_body(null_tree):
    """Java's HTTP client asks for HTTP/2 with every request; a server that stays with HTTP/1.1 reads on."""
    upgrade = {"upgrade": "h2c", "http2_settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"}
    whole = post(CHAT, VALID, **upgrade).replace(b"connection: close", b"connection: Upgrade, HTTP2-Settings")
    chunked = re.sub(
        rb"content-length: \d+", b"transfer-encoding: chunked", whole[: -len(VALID)]
    ) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(VALID), VALID)
    for data in (whole, chunked):
        answer = raw_http(null_tree, data + data + head("GET", "/health"))
        assert answer.count(b"HTTP/1.1 200 OK") == 3, answer
        assert answer.endswith(b'{"status":"ready"}')
    pieces = b"".join([whole, chunked] * 20)
    assert raw_http(null_tree, pieces + head("GET", "/health"), 30).count(b"HTTP/1.1 200 OK") == 41


# C22.


@pytest.fixture(scope="module")
def small_body_tree():
    with Tree("--model-impl", "null", "--max-body-mib", "10") as tree:
        yield tree.wait_ready()


def pieces(size, piece=b"x" * 65_536):
    yield b'{"model":"null","prompt":"'
    for _ in range(0, size, len(piece)):
        yield piece
    yield b'"}'


@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "chunked"])
@pytest.mark.parametrize("size", [1, 9, 11, 50])
def test_c22_the_limit_of_a_body_is_ours(small_body_tree, size, chunked):
    """Whatever becomes of a request, the next one on its connection works, or finds the connection closed."""
    tree = small_body_tree
    frontend = tree.pid("frontend-0")
    before = tree.memory_kib(frontend)
    for _ in range(3):
        content = pieces(size * M) if chunked else b"".join(pieces(size * M))
        with httpx.Client(base_url=tree.url, timeout=60) as client:
            try:
                answer = client.post(COMPLETIONS, content=content, headers=JSON)
            except (httpx.WriteError, httpx.ReadError):  # closed while we were still sending
                assert size > 10
            else:
                error = error_of(answer, 400 if size < 10 else 413)
                assert error["code"] == ("context_length_exceeded" if size < 10 else "request_too_large")
            assert client.get("/v1/models").status_code == 200
            tree.sentinel()
    until(lambda: tree.memory_kib(frontend) - before < 24 * 1024, 10)


def test_c22_by_default_eleven_megabytes_are_read(null_tree):
    body = json.dumps({"model": "null", "prompt": "hi", "max_tokens": 1}).encode()
    assert sent(null_tree, COMPLETIONS, body.ljust(11 * M)).status_code == 200
    assert sent(null_tree, COMPLETIONS, body.ljust(32 * M)).status_code == 200
    assert error_of(sent(null_tree, COMPLETIONS, body.ljust(32 * M + 1)), 413)["code"] == "request_too_large"


@pytest.mark.parametrize("value", [b"[1]", b"[]", b'"[,"', b"{}", b"1"])
def test_c22_a_body_of_countless_values_is_refused_before_it_costs(null_tree, value):
    """30 MiB of empty lists would be gigabytes, and seconds in which nobody else is served."""
    frontend = null_tree.pid("frontend-0")
    before = null_tree.memory_kib(frontend)
    for path, name in ((COMPLETIONS, b"prompt"), (CHAT, b"messages"), (CHAT, b"unknown")):
        content = b'{"model":"null","%b":[' % name + b",".join([value] * (20 * M // (len(value) + 1))) + b"]}"
        error_of(sent(null_tree, path, content))
    assert null_tree.pid("frontend-0") == frontend
    until(lambda: null_tree.memory_kib(frontend) - before < 64 * 1024, 10)
    null_tree.sentinel()
