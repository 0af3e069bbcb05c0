"""C07, C08, C09, C12, C22: bodies that are no JSON, no text, too large or too much, and what every error looks like."""

import gzip
import json
import re
import signal

import httpx
import pytest
from exchange import PATHS, endless
from hostile import head, post, raw_http, status_of
from openai import OpenAI
from refusals import TYPES, error_of
from tree import Tree, in_parallel, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

COMPLETIONS, CHAT = PATHS
JSON = {"content-type": "application/json"}
M = 2**20


def sent(tree, path, content, **options):
    return tree.client.post(path, content=content, headers=JSON, **options)


# C07.

PLACES = {
    "content": b'{"model":"null","max_tokens":2,"messages":[{"role":"user","content":"%b"}]}',
    "a part": b'{"model":"null","max_tokens":2,"messages":[{"role":"user","content":[{"type":"text","text":"%b"}]}]}',
    "role": b'{"model":"null","max_tokens":2,"messages":[{"role":"%b","content":"x"}]}',
    "name": b'{"model":"null","max_tokens":2,"messages":[{"role":"user","name":"%b","content":"x"}]}',
    "model": b'{"model":"%b","max_tokens":2,"messages":[{"role":"user","content":"x"}]}',
    "stop": b'{"model":"null","max_tokens":2,"stop":"%b","messages":[{"role":"user","content":"x"}]}',
    "a tool": b'{"model":"null","max_tokens":2,"tool_choice":"none","tools":[{"type":"function","function":{"name":"%b"}}],"messages":[{"role":"user","content":"x"}]}',
    "arguments": b'{"model":"null","max_tokens":2,"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"%b"}}]}]}',
    "a value of metadata": b'{"model":"null","max_tokens":2,"metadata":{"k":"%b"},"messages":[{"role":"user","content":"x"}]}',
    "a key of metadata": b'{"model":"null","max_tokens":2,"metadata":{"%b":"v"},"messages":[{"role":"user","content":"x"}]}',
    "a key of logit_bias": b'{"model":"null","max_tokens":2,"logit_bias":{"%b":1},"messages":[{"role":"user","content":"x"}]}',
    "an unknown field": b'{"model":"null","max_tokens":2,"%b":1,"messages":[{"role":"user","content":"x"}]}',
    "user": b'{"model":"null","max_tokens":2,"user":"%b","messages":[{"role":"user","content":"x"}]}',
}  # fmt: skip
NO_TEXT = [
    rb"\ud800", rb"a\udfffb", rb"\udc00\ud800", rb"\ud800\ud800", rb"\ud83d\ud83d\ude00", rb"\ud83d \ude00",
    b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\x80", b"\xe2\x82", b"a\x00b", b"a\nb", rb"\u12", rb"\x41",
]  # fmt: skip
ODD_TEXT = [
    "a\0b", "\ufffd", "\ufeffx", "\uffff\U0010ffff", "\u2028\u2029\x85", "\x1b[31mred\x07", "\u202eevil", "e\u0301\u0302" * 50,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\r\n\t\v\f", "<|im_end|>", "</s>", "{{ 7 * 7 }}{% raise %}", "%s%n%x", "\u0130\u212a",
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_c07_what_is_no_text(null_tree, place):
    for bad in NO_TEXT:
        for extra in (b"", b'"stream":true,'):
            content = PLACES[place].replace(b"{", b"{" + extra, 1) % bad
            error = error_of(sent(null_tree, CHAT, content))
            error["message"].encode()
    null_tree.sentinel()
    assert "Traceback" not in null_tree.log


@pytest.mark.parametrize("place", PLACES)
def test_c07_odd_text_is_text(null_tree, place):
    for text in ODD_TEXT:
        answer = sent(null_tree, CHAT, PLACES[place] % json.dumps(text)[1:-1].encode())
        assert answer.status_code in (200, 400, 404), answer.text
        if place in (
            "content",
            "a part",
            "name",
            "arguments",
            "user",
            "a value of metadata",
            "a key of metadata",
            "a tool",
        ):
            assert answer.status_code == 200, (text, answer.text)


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
        for template in PLACES.values():
            for text in (
                *NO_TEXT,
                *(json.dumps(text)[1:-1].encode() for text in ODD_TEXT),
                "\u202e\u2028\x9b31m".encode(),
            ):
                sent(tree, CHAT, template % text)
        raw_http(tree, b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: a\x1b[31mb\r\n\r\n")
        assert [line for line in tree.log.split("\n") if not line.replace("\t", "").isprintable()] == []


# C08.

VALID = json.dumps({"model": "null", "messages": [{"role": "user", "content": "hi"}]}).encode()
MALFORMED = {
    "nothing": b"", "a comma": VALID[:-1] + b",}", "an array": b"[]", "null": b"null", "a text": b'"x"', "a number": b"1",
    "a key twice": b'{"model":"null","model":"null","messages":[{"role":"user","content":"x"}]}', "half": VALID[:-9], "two": VALID * 2,
    "brackets": b"[" * 200_000, "braces": b'{"a":' * 200_000, "deep in a field": b'{"model":"null","metadata":{"a":' + b"[" * 200_000,
    "a comment": b"/* x */" + VALID, "single quotes": b"{'model':'null'}", "compressed": gzip.compress(VALID),
    "deep and whole": b'{"model":"null","metadata":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
}  # fmt: skip


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


# C09.


def test_c09_every_error_has_one_form(null_tree):
    client = null_tree.client
    for status, answer in {
        400: client.post(CHAT, json={"model": "null"}),
        404: client.get("/v1/nothing"),
        405: client.get(CHAT),
        413: sent(null_tree, CHAT, b"x" * (33 * M)),
        415: client.post(CHAT, content=VALID, headers={"content-type": "text/plain"}),
    }.items():
        error_of(answer, status)
    assert error_of(client.post(CHAT, json={"model": "other", "messages": []}))["param"] == "messages"
    other = client.post(CHAT, json={"model": "other", "messages": [{"role": "user", "content": "x"}]})
    assert error_of(other, 404)["code"] == "model_not_found"
    assert error_of(client.get("/v1/models/other"), 404)["code"] == "model_not_found"
    for method in ("PUT", "PATCH", "DELETE", "TRACE"):
        for path in (*PATHS, "/health", "/metrics", "/v1/models"):
            assert error_of(client.request(method, path), 405)["code"] == "method_not_allowed"


def test_c09_what_is_no_http(null_tree):
    for data in (
        b"\0\1\2\r\n\r\n",
        b"GET\r\n\r\n",
        b"BREW /pot HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"x" * 100_000,
    ):
        answer = raw_http(null_tree, data)
        assert status_of(answer) == 400, answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    null_tree.sentinel()


def test_c09_no_room_is_429_with_a_time(start):
    """A refusal of a stream is an answer of JSON, not an event."""
    tree = start("--model-impl", "null", "--null-step-ms", "20", "--max-num-seqs", "1", "--max-waiting", "1")
    bodies = [endless(tree, path, max_tokens=40, stream=stream) for path in PATHS for stream in (False, True)] * 3
    answers = in_parallel([lambda b=b: tree.post(CHAT if "messages" in b else COMPLETIONS, b) for b in bodies])
    refusals = [answer for answer in answers if answer.status_code != 200]
    assert 1 <= len(bodies) - len(refusals)
    assert len(refusals) >= 8
    for answer in refusals:
        assert error_of(answer, 429)["code"] == "overloaded"
    tree.settled()
    tree.sentinel()


def test_c09_a_lost_process_is_500_and_a_tree_that_ends_is_503(start):
    tree = start("--model-impl", "null", "--null-step-ms", "20")
    answers = []
    bodies = [endless(tree, path, max_tokens=400) for path in PATHS]
    jobs = [lambda b=b: answers.append(tree.post(CHAT if "messages" in b else COMPLETIONS, b)) for b in bodies]
    jobs.append(lambda: until(lambda: tree.total("num_requests_running") == 2, 10) and tree.kill("engine-0"))
    in_parallel(jobs)
    for answer in answers:
        error_of(answer, 500, 503)
    tree.wait_ready()
    stream = tree.events(COMPLETIONS, endless(tree, max_tokens=2000))
    next(stream)
    tree.process.send_signal(signal.SIGTERM)
    until(lambda: tree.client.get("/ready").status_code == 503, 5)
    for path in (CHAT, COMPLETIONS):
        error_of(tree.post(path, endless(tree, path)), 503)
    error_of(tree.client.get("/ready"), 503)
    assert tree.client.get("/health").status_code == 200


def test_c09_the_statuses_are_all_there_are(null_tree):
    document = null_tree.client.get("/schema/openapi.json").json()
    for path in document["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                assert status == "200" or (int(status) in TYPES and "ErrorResponse" in json.dumps(answer))


# C12.

NULLS = """n temperature top_p top_k min_p seed min_tokens stop stop_token_ids logit_bias ignore_eos skip_special_tokens
include_stop_str_in_output stream stream_options presence_penalty frequency_penalty repetition_penalty user max_tokens""".split()
CHAT_NULLS = """max_completion_tokens tools tool_choice response_format logprobs top_logprobs modalities function_call service_tier
reasoning_effort verbosity parallel_tool_calls store metadata safety_identifier prompt_cache_key prompt_cache_retention audio functions
moderation prediction web_search_options""".split()
IGNORED = {
    "store": True, "metadata": {"a": "b"}, "parallel_tool_calls": True, "reasoning_effort": "low", "user": "u", "verbosity": "low",
    "safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "auto",
}  # fmt: skip


def test_c12_every_field_may_be_null(null_tree):
    chat = dict.fromkeys([*NULLS, *CHAT_NULLS]) | {"max_tokens": 2}
    assert null_tree.chat("hi", **chat)["usage"]["completion_tokens"] <= 2
    text = dict.fromkeys([*NULLS, "echo", "best_of", "suffix", "logprobs"])
    assert null_tree.complete("hi", **text)["usage"]["completion_tokens"] <= 16
    for name in NULLS:
        assert null_tree.complete("hi", **{name: None})


def test_c12_fields_without_effect_are_told_at_debug_alone(start, null_tree):
    debug = start("--model-impl", "null", "--log-level", "debug")
    for tree in (null_tree, debug):
        client = OpenAI(base_url=f"{tree.url}/v1", api_key="none", max_retries=0)
        same = {
            "model": tree.model,
            "messages": [{"role": "user", "content": "hi"}],
            "max_completion_tokens": 5,
            "seed": 1,
        }
        plain = client.chat.completions.create(**same)
        ignored = client.chat.completions.create(**same, **IGNORED, stream_options=None)
        assert plain.choices[0].message.content == ignored.choices[0].message.content
        events = client.chat.completions.create(**same, **IGNORED, stream=True, stream_options={"include_usage": True})
        assert [event.usage for event in events][-1].completion_tokens == plain.usage.completion_tokens
        client.close()
    until(lambda: "parallel_tool_calls" in debug.log, 5)
    assert "parallel_tool_calls" not in null_tree.log


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
