"""C07: what is no text is refused, and what is odd text is text, wherever it stands in a request."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from exchange import PATHS
from hostile import raw_http, status_of
from refusals import error_of
from tree import Tree

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

COMPLETIONS, CHAT = PATHS
JSON = {"content-type": "application/json"}


def sent(tree, path, content):
    return tree.client.post(path, content=content, headers=JSON)


USER = b'"messages":[{"role":"user","content":"x"}]'
CALLED = b'{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"%b"}}]}'
PLACES = {
    "content": b'"messages":[{"role":"user","content":"%b"}]',
    "a part": b'"messages":[{"role":"user","content":[{"type":"text","text":"%b"}]}]',
    "role": b'"messages":[{"role":"%b","content":"x"}]',
    "name": b'"messages":[{"role":"user","name":"%b","content":"x"}]',
    "arguments": b'"messages":[{"role":"user","content":"x"},' + CALLED + b"]",
    "stop": b'"stop":"%b",' + USER,
    "a tool": b'"tool_choice":"none","tools":[{"type":"function","function":{"name":"%b"}}],' + USER,
    "a value of metadata": b'"metadata":{"k":"%b"},' + USER,
    "a key of metadata": b'"metadata":{"%b":"v"},' + USER,
    "a key of logit_bias": b'"logit_bias":{"%b":1},' + USER,
    "an unknown field": b'"%b":1,' + USER,
    "user": b'"user":"%b",' + USER,
    "model": b'"model":"%b",' + USER,
}
TAKEN = ("content", "a part", "name", "arguments", "a tool", "a value of metadata", "a key of metadata", "user")
ESCAPES = [rb"\ud800", rb"a\udfffb", rb"\udc00\ud800", rb"\ud800\ud800", rb"\ud83d\ud83d\ude00", rb"\ud83d \ude00"]
BYTES = [b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80", b"\xe2\x82"]
NO_TEXT = [*ESCAPES, *BYTES, b"a\x00b", b"a\nb", rb"\u12", rb"\x41"]
CONTROLS = ["a\0b", "\x1b[31mred\x07", "\r\n\t\v\f", "\u2028\u2029\x85", "\u202eevil", "\ufeffx"]
RARE = [
    "\ufffd",
    "\uffff\U0010ffff",
    "e\u0301\u0302" * 50,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u0130\u212a",
]
ODD_TEXT = [*CONTROLS, *RARE, "<|im_end|>", "</s>", "{{ 7 * 7 }}{% raise %}", "%s%n%x"]


def body_with(place, text, extra=b""):
    """A request with this text, as JSON has it, in one place."""
    model = b"" if place == "model" else b'"model":"null",'
    return b"{" + extra + model + b'"max_tokens":2,' + PLACES[place] % text + b"}"


def as_json(text):
    return json.dumps(text)[1:-1].encode()


@pytest.mark.parametrize("place", PLACES)
def test_c07_what_is_no_text(null_tree, place):
    for bad in NO_TEXT:
        for extra in (b"", b'"stream":true,'):
            error = error_of(sent(null_tree, CHAT, body_with(place, bad, extra)))
            error["message"].encode()
    null_tree.sentinel()
    assert "Traceback" not in null_tree.log


@pytest.mark.parametrize("place", PLACES)
def test_c07_odd_text_is_text(null_tree, place):
    for text in ODD_TEXT:
        answer = sent(null_tree, CHAT, body_with(place, as_json(text)))
        assert answer.status_code in ((200,) if place in TAKEN else (200, 400, 404)), (text, answer.text)


@pytest.mark.parametrize("tree", ["null_tree", "smollm2"])
def test_c07_text_comes_back_as_it_went(request, tree):
    """Through the tokenizer and back, NUL included. Special tokens written out are tokens."""
    tree = request.getfixturevalue(tree)
    for text in ODD_TEXT:
        fields = {"max_tokens": 0, "echo": True, "skip_special_tokens": False}
        assert tree.text(text, **fields) == text
        ids = list(text.encode())
        if tree.model == "null" and "<|" not in text:
            assert tree.text(ids, **fields) == text


ENCODED = {
    "UTF-16": lambda body: body.encode("utf-16"),
    "UTF-16 without a mark": lambda body: body.encode("utf-16-le"),
    "UTF-32": lambda body: body.encode("utf-32"),
    "a byte order mark": lambda body: b"\xef\xbb\xbf" + body.encode(),
    "Latin-1": lambda body: body.replace("hi", "\xfc").encode("latin-1"),
}


@pytest.mark.parametrize("encoding", ENCODED)
def test_c07_other_encodings(null_tree, encoding):
    body = json.dumps({"model": "null", "messages": [{"role": "user", "content": "hi"}]})
    error_of(sent(null_tree, CHAT, ENCODED[encoding](body)))


@pytest.mark.parametrize("value", [b"\xff\xfe", b"\xed\xa0\x80", b"a\x1b[31mb", b"\x80" * 1000, b"x" * 10_000])
@pytest.mark.parametrize(
    "name", [b"x-request-id", b"user-agent", b"authorization", b"accept", b"content-type", b"host", b"origin"]
)
def test_c07_headers_that_are_no_text(null_tree, name, value):
    answer = raw_http(
        null_tree, b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n" + name + b": " + value + b"\r\n\r\n"
    )
    assert status_of(answer) in (200, 400), answer
    assert value not in answer


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/models/\xff",
        b"/v1/models/%ff",
        b"/v1/models/%ED%A0%80",
        b"/v1/models/%00",
        b"/%0d%0ax: y",
        b"/\x1b[31m",
        b"/%1b[31m",
    ],
)
def test_c07_paths_that_are_no_text(null_tree, path):
    answer = raw_http(null_tree, b"GET " + path + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert status_of(answer) in (400, 404), answer
    top, _, body = answer.partition(b"\r\n\r\n")
    assert b"\nx: y" not in top
    assert json.loads(body.decode())["error"]["type"] == "invalid_request_error"


def test_c07_the_log_stays_printable():
    """Whatever was refused, at the level that tells most."""
    with Tree("--model-impl", "null", "--log-level", "debug") as tree:
        tree.wait_ready()
        for place in PLACES:
            for text in (*NO_TEXT, *map(as_json, ODD_TEXT), "\u202e\u2028\x9b31m".encode()):
                sent(tree, CHAT, body_with(place, text))
        raw_http(tree, b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: a\x1b[31mb\r\n\r\n")
        assert [line for line in tree.log.split("\n") if not line.replace("\t", "").isprintable()] == []


def test_c07_a_served_name_of_any_text(start):
    """Markup, quotes and backslashes in a name are characters, in JSON, in metrics and in tables."""
    name = 'a[/b] [red]"\\é :smile: {x}'
    tree = start("--model-impl", "null", "--served-model-name", name)
    assert tree.model == name
    assert tree.complete("x", max_tokens=1)["model"] == name
    assert tree.client.get(f"/v1/models/{quote(name, safe='')}").json()["id"] == name
    assert error_of(tree.client.get("/v1/models/other"), 404)["param"] == "model"
    assert tree.total("requests_accepted_total") == 1
    for command in (["ps"], ["plan", "--model-impl", "null", "--served-model-name", name]):
        program = str(Path(sys.executable).with_name("actorlm"))
        ended = subprocess.run([program, *command], capture_output=True, text=True, timeout=60, check=True)
        assert name in ended.stdout
