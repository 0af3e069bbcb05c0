"""E15, E23, E18, E10, E01: without the key nothing but liveness; no CORS; nothing is fetched, multiplied or loaded."""

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hostile import head, pickles, post, raw_http, status_of
from tree import Tree, in_parallel

from actorlm.api.key_edit import add
from actorlm.api.key_file import Key, hash_of

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

KEY = "sk-of-the-tests"
ADMIN_KEY = "sk-of-the-operators"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"]
LIKE_HEALTH = ["/health/", "//health", "/health/x", "/Health", "/HEALTH", "/health%2f", "/health%00", "/health;x"]
THROUGH = [
    "/health/../v1/models",
    "/health/..%2fv1/models",
    "/v1/../metrics",
    "/v1/%2e%2e/metrics",
    "/%2e/metrics",
    "*",
]
ABSOLUTE = ["http://127.0.0.1/metrics", "http://health/health/metrics"]
PAGES = ["/schema", "/schema/", "/schema/swagger", "/schema/redoc", "/schema/openapi.yaml", "/docs", "/openapi.json"]
METRICS = ["/metrics/", "//metrics", "/METRICS", "/%6detrics", "/metrics%20", "/metrics?x=/health", "/metrics#/health"]
MODELS = ["//v1/models", "/v1//models", "/v1/models/", "/V1/MODELS", "/v1/models/%2e%2e/%2e%2e/health"]
OTHERS = ["/", "//", "/tokenize", "/admin", "/sleep", "/shutdown", "/debug", "/static", "/.env", "/v1", "/ready/"]
ADMIN = ["/admin/", "/admin/tree", "/admin/drain", "/admin/restart/engine-0", "//admin/tree", "/%61dmin/tree"]
ADMIN += ["/ADMIN/tree", "/admin%2ftree", "/v1/../admin/tree", "/health/../admin/tree", "/admin/../health"]
PROBED = [*LIKE_HEALTH, *THROUGH, *ABSOLUTE, *PAGES, *METRICS, *MODELS, *OTHERS, *ADMIN]
WITHOUT = {
    "nothing": {},
    "another key": {"authorization": "Bearer sk-of-the-test"},
    "a longer key": {"authorization": f"Bearer {KEY}x"},
    "no scheme": {"authorization": KEY},
    "another scheme": {"authorization": f"Basic {KEY}"},
    "an empty key": {"authorization": "Bearer "},
    "a header of another API": {"api_key": KEY, "x_api_key": KEY},
    "an original address": {"x_forwarded_for": "127.0.0.1", "x_real_ip": "127.0.0.1", "forwarded": "for=127.0.0.1"},
    "a rewritten path": {"x_original_url": "/health", "x_rewrite_url": "/health"},
    "the operators' key": {"authorization": f"Bearer {ADMIN_KEY}"},
    "a key that has expired": {"authorization": "Bearer another"},
    "another method": {"x_http_method_override": "GET"},
    "a cookie": {"cookie": f"Authorization=Bearer {KEY}; api_key={KEY}"},
}


@pytest.fixture(scope="module", params=["option", "file"])
def guarded(request, tmp_path_factory):
    """A tree with a key, from the environment; or from a file, beside a key for operators."""
    options, variables = [], {"ACTORLM_API_KEY": KEY}
    if request.param == "file":
        options = ["--api-keys-file", tmp_path_factory.mktemp("keys") / "keys.toml"]
        variables = {"ACTORLM_ADMIN_KEY": ADMIN_KEY}
        add(options[1], Key(name="alice", hash=hash_of(KEY)))
        add(options[1], Key(name="bob", hash=hash_of("another"), expires=datetime(2020, 1, 1, tzinfo=UTC)))
    with Tree("--model-impl", "null", *options, env=variables) as tree:
        tree.client.headers["authorization"] = f"Bearer {KEY}"
        yield tree.wait_ready()


@pytest.fixture(scope="module")
def operated():
    """A tree without a key for clients, and with one for operators."""
    with Tree("--model-impl", "null", env={"ACTORLM_ADMIN_KEY": ADMIN_KEY}) as tree:
        yield tree.wait_ready()


@pytest.fixture(scope="module")
def routes(guarded):
    """Every path of the OpenAPI document, and the document itself."""
    document = guarded.client.get("/schema/openapi.json").json()
    paths = [path.replace("{model}", "null") for path in document["paths"]]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics", "/ready", "/version"} <= set(paths)
    return [*paths, "/schema/openapi.json"]


def statuses(tree, requests):
    """The statuses of many raw requests, over a few connections at a time."""
    found, left = [None] * len(requests), iter(enumerate(requests))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                index, data = next(left, (None, None))
            if data is None:
                return
            found[index] = raw_http(tree, data)

    assert in_parallel([work] * 8) == [None] * 8
    return found


def test_e15_every_route_and_method_without_the_key(guarded, routes):
    asked = [(method, path) for path in [*routes, *PROBED] for method in METHODS if path != "/health"]
    answers = statuses(guarded, [head(method, path) for method, path in asked])
    for (method, path), answer in zip(asked, answers, strict=True):
        assert status_of(answer) == 401, (method, path, answer)
        assert b"www-authenticate: Bearer\r\n" in answer
        if method != "HEAD":
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_api_key"


def test_e15_liveness_alone_needs_no_key(guarded):
    answers = statuses(guarded, [head(method, "/health") for method in METHODS])
    assert {method: status_of(answer) for method, answer in zip(METHODS, answers, strict=True)} == {
        method: 200 if method in ("GET", "HEAD") else 401 for method in METHODS
    }
    body = answers[0].partition(b"\r\n\r\n")[2]
    assert json.loads(body) == {"status": "ready"}
    assert status_of(raw_http(guarded, head("GET", "/%68ealth?x=1"))) == 200  # the same path, written otherwise


@pytest.mark.parametrize("what", WITHOUT)
def test_e15_what_is_no_key(guarded, routes, what):
    body = json.dumps({"model": "null", "prompt": "x"}).encode()
    requests = [head("GET", path, **WITHOUT[what]) for path in routes if path != "/health"]
    requests += [post(path, body, **WITHOUT[what]) for path in ("/v1/completions", "/v1/chat/completions")]
    assert {status_of(answer) for answer in statuses(guarded, requests)} == {401}


@pytest.mark.parametrize(
    "headers",
    [
        f"authorization: Bearer {KEY}\r\nauthorization: Bearer {KEY}\r\n",
        f"authorization: Bearer wrong\r\nauthorization: Bearer {KEY}\r\n",
        f"authorization: Bearer {KEY}, Bearer wrong\r\n",
        f"authorization: Bearer\x0b{KEY}\r\n",
        "authorization: Bearer \xff\xfe\r\n",
        f"authorization : Bearer {KEY}\r\n",
        f"x: y\r\n authorization: Bearer {KEY}\r\n",
    ],
)
def test_e15_headers_that_are_ambiguous(guarded, headers):
    data = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + headers.encode("latin-1") + b"\r\n"
    assert status_of(raw_http(guarded, data)) in (400, 401)


@pytest.mark.parametrize(
    "query", [f"api_key={KEY}", f"key={KEY}", f"access_token={KEY}", f"Authorization=Bearer%20{KEY}"]
)
def test_e15_the_key_in_a_query(guarded, query):
    assert status_of(raw_http(guarded, head("GET", f"/v1/models?{query}"))) == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_e15_the_key(guarded, routes, scheme):
    key = {"authorization": f"{scheme} {KEY}"}
    found = {path: status_of(raw_http(guarded, head("GET", path, **key))) for path in routes}
    posted = ("completions", "tokenize")
    assert found == {path: 405 if path.endswith(posted) else 200 for path in routes}
    assert status_of(raw_http(guarded, post("/v1/completions", b'{"model":"null","prompt":"x"}', **key))) == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health", "/metrics", "/v1/realtime"])
def test_e15_no_websocket_and_no_other_protocol(guarded, path):
    for protocol in ("websocket", "h2c"):
        data = head("GET", path, upgrade=protocol, sec_websocket_key="x" * 22 + "==", sec_websocket_version=13)
        data = data.replace(b"connection: close", b"connection: upgrade, close")
        assert status_of(raw_http(guarded, data, 5)) == (200 if path == "/health" else 401)


def test_e15_refusals_come_before_bodies_are_read(guarded):
    data = head(
        "POST", "/v1/completions", content_type="application/json", content_length=30_000_000, expect="100-continue"
    )
    answer = raw_http(guarded, data)
    assert status_of(answer) == 401, answer


def test_e15_operators_have_routes_of_their_own(operated):
    for path in ADMIN:
        for key in ({}, {"authorization": f"Bearer {KEY}"}):
            assert status_of(raw_http(operated, head("GET", path, **key))) in (401, 404), path
            assert status_of(raw_http(operated, head("POST", path, **key))) in (401, 404), path
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    described = operated.client.get("/admin/tree", headers=admin).json()
    assert described["state"] == "ready"
    assert {actor["pid"] for actor in described["actors"]} < set(operated.processes())
    assert operated.client.get("/v1/models").status_code == 200
    assert ADMIN_KEY not in operated.log


def test_e15_an_api_key_is_no_operators_key(guarded):
    for path in ("/admin/tree", "/admin/nothing"):
        assert guarded.client.get(path).status_code in (401, 404)  # 404 where there are no such routes


def test_e15_the_key_is_in_no_log_and_no_answer(guarded):
    for path in ("/v1/models", "/metrics", "/schema/openapi.json", "/nothing"):
        assert KEY not in guarded.client.get(path).text
    assert KEY not in guarded.log
    assert not any(KEY in title for title in guarded.processes().values())
    for pid, title in guarded.processes().items():
        if title != "actorlm supervisor":
            environment = Path(f"/proc/{pid}/environ").read_text()
            assert KEY not in environment
            assert ADMIN_KEY not in environment


@pytest.mark.parametrize("key", ["", " ", "\t\n", "sk with spaces", "sk-with-its-line\n", "schl\u00fcssel"])
@pytest.mark.parametrize("way", ["flag", "environment", "file"])
def test_e15_a_key_that_is_none_is_an_error_of_the_start(tmp_path, key, way):
    command = [str(Path(sys.executable).with_name("actorlm")), "up", "--model-impl", "null", "--port", "0"]
    variables = {}
    if way == "flag":
        command += ["--api-key", key]
    elif way == "environment":
        variables = {"ACTORLM_API_KEY": key}
    else:
        file = tmp_path / "tree.toml"
        file.write_text(f"[http]\napi_key = {json.dumps(key)}\n")
        command.insert(2, str(file))
    ended = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2, ended
    assert ended.stderr.startswith("actorlm: --api-key (http.api_key) "), ended
    assert not key.strip() or key.strip() not in ended.stderr


# E23.


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_e23_no_cors(guarded, null_tree, routes, origin):
    asks = {
        "origin": origin,
        "access_control_request_method": "POST",
        "access_control_request_headers": "authorization",
    }
    for tree, path in itertools.product((guarded, null_tree), routes):
        for method in ("OPTIONS", "GET", "POST"):
            answer = raw_http(tree, head(method, path, **asks))
            assert b"access-control-" not in answer.lower(), answer
            if tree is guarded and (path, method) != ("/health", "GET"):
                assert status_of(answer) == 401


def test_e23_a_preflight_runs_nothing(null_tree):
    before = null_tree.total("requests_accepted_total")
    body = b'{"model":"null","prompt":"x"}'
    answer = raw_http(null_tree, post("/v1/completions", body, origin="x").replace(b"POST", b"OPTIONS", 1))
    assert status_of(answer) in (200, 204, 405)
    assert null_tree.total("requests_accepted_total") == before


# E21.


def test_e21_no_header_of_a_proxy_is_believed(null_tree):
    """Nor does any make a request another one's."""
    for number in range(20):
        proxied = {"x_forwarded_for": f"10.0.0.{number}", "x_forwarded_proto": "https", "x_forwarded_host": "evil"}
        answer = raw_http(null_tree, head("GET", "/v1/models", **proxied, x_original_url="/admin/tree"))
        assert status_of(answer) == 200
        assert b"evil" not in answer
        assert b"10.0.0." not in answer


def test_e21_a_form_is_refused_unread(null_tree):
    part = b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\nb\r\n'
    frontend = null_tree.pid("frontend-0")
    before = null_tree.memory_kib(frontend)
    media = {"content-type": "multipart/form-data; boundary=x"}
    assert null_tree.client.post("/v1/completions", content=part * 200_000, headers=media).status_code == 415
    assert null_tree.memory_kib(frontend) - before < 16 * 1024
    null_tree.sentinel()


# E18.


@pytest.fixture
def listener():
    """A local server that counts who connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        yield server


PARTS = [
    lambda url: {"type": "image_url", "image_url": {"url": url}},
    lambda url: {"type": "image_url", "image_url": url},
    lambda url: {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
    lambda url: {"type": "video_url", "video_url": {"url": url}},
    lambda url: {"type": "file", "file": {"file_data": url}},
    lambda url: {"type": "text", "text": "x", "image_url": {"url": url}},
]


@pytest.mark.parametrize("part", range(len(PARTS)))
def test_e18_nothing_is_fetched(null_tree, listener, part):
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
    for content in ([PARTS[part](url)], [{"type": "text", "text": "x"}, PARTS[part](url)]):
        body = {"model": null_tree.model, "messages": [{"role": "user", "content": content}], "max_tokens": 1}
        answer = null_tree.post("/v1/chat/completions", body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("messages[0].content")
    with pytest.raises(TimeoutError):
        listener.accept()
    null_tree.sentinel()


@pytest.mark.parametrize(
    "field", ["prompt_embeds", "image", "lora_path", "chat_template", "web_search_options", "documents"]
)
def test_e17_no_field_is_a_tensor_a_path_or_a_template(null_tree, listener, field):
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
    body = {"model": null_tree.model, "messages": [{"role": "user", "content": "x"}], field: url}
    answer = null_tree.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    with pytest.raises(TimeoutError):
        listener.accept()


# E01.


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
def test_e01_a_pickle_is_no_body(null_tree, tmp_path, path):
    pwned = tmp_path / "pwned"
    for payload in pickles(pwned):
        for content_type, status in (("application/json", 400), ("application/octet-stream", 415), ("text/plain", 415)):
            answer = null_tree.client.post(path, content=payload, headers={"content-type": content_type})
            assert answer.status_code == status, answer.text
        text = payload.decode("latin-1")
        for field in ({"prompt": text, "colour": text}, {"model": text}, {"messages": text}, {"tokens": text}):
            assert null_tree.post(path, {"max_tokens": 1} | field).status_code in (400, 404)
        assert status_of(raw_http(null_tree, payload + b"\r\n\r\n", 2)) in (0, 400)
    null_tree.sentinel()
    assert not pwned.exists()


# E10.

MANY = [
    {"prompt": "x", "n": 1_000_000},
    {"prompt": "x", "n": 2**63 - 1},
    {"prompt": "x", "n": 1025},
    {"prompt": "x", "best_of": 1_000_000},
    {"prompt": ["x"] * 100_000},
    {"prompt": [[1]] * 100_000},
    {"prompt": ["x"] * 600, "n": 600},
    {"prompt": ["x"] * 2, "n": 513},
    {"prompt": [[1]] * 1025},
    {"prompt": [[]] * 100_000},
    {"prompt": "x", "n": 1_000_000, "stream": True},
    {"messages": [{"role": "user", "content": "x"}], "n": 1_000_000},
    {"messages": [{"role": "user", "content": "x"}] * 100_000},
    {"prompt": "x", "stop": ["a"] * 100_000},
    {"prompt": "x", "stop_token_ids": [1] * 100_000},
    {"prompt": "x", "logit_bias": {str(key): 1 for key in range(300_000)}},
]


@pytest.mark.parametrize("index", range(len(MANY)))
def test_e10_products_are_refused_before_they_are_made(null_tree, index):
    fields = MANY[index]
    frontend = null_tree.pid("frontend-0")
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    accepted, before = null_tree.total("requests_accepted_total"), null_tree.memory_kib(frontend)
    for _ in range(3):
        answer = null_tree.post(path, {"model": null_tree.model} | fields)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert len(answer.content) < 1000
    assert null_tree.total("requests_accepted_total") == accepted
    assert null_tree.memory_kib(frontend) - before < 64 * 1024


def test_e10_the_largest_product_is_served(null_tree):
    answer = null_tree.complete(["x", "y"], n=512, max_tokens=1)
    assert [choice["index"] for choice in answer["choices"]] == list(range(1024))
    null_tree.settled()
