"""The operators' routes: not there without an admin key, and with one only for who brings it."""

import httpx
import pytest
from fake_backend import make_client

from actorlm.api.app import create_app
from actorlm.api.key_edit import add
from actorlm.api.key_file import Key, hash_of
from actorlm.api.keys import open_keys
from actorlm.config import HttpConfig
from actorlm.errors import ConfigError, Unavailable
from actorlm.messages.actor import TreeState
from actorlm.messages.operator import OrderEnded, OrderProgressed, TreeDescribed
from actorlm.messages.supervisor import DrainTree, RestartActors

API, ADMIN = "sk-of-clients", "sk-of-operators"
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"]
ROUTES = [("GET", "/admin/tree"), ("POST", "/admin/drain"), ("POST", "/admin/restart/engine-0")]
PATHS = [
    *(path for _, path in ROUTES),
    "/admin",
    "/admin/",
    "/admin/tree",
    "/admin/tree/",
    "/admin/nope",
    "/%61dmin/tree",
    "/admin%2ftree",
    "/admin//tree",
]
BESIDE = ["//admin/tree", "/ADMIN/tree", "/adminx", "/v1/admin/tree", "/health/admin/tree"]


class FakeOperations:
    """Writes down what it is asked."""

    def __init__(self):
        self.asked = []
        self.error = None
        self.said = OrderProgressed("restarting engine-0")

    async def describe(self):
        self.asked.append("describe")
        if self.error is not None:
            raise self.error
        return TreeDescribed(TreeState.READY, "fake", "http://test", ())

    async def order(self, order):
        self.asked.append(order)
        if self.error is not None:
            raise self.error
        return self.said


@pytest.fixture
def operations():
    return FakeOperations()


def client_of(backend, operations, **config):
    return make_client(backend, app=create_app(backend, HttpConfig(**config), operations))


@pytest.fixture
async def both(backend, operations):
    async with client_of(backend, operations, api_key=API, admin_key=ADMIN) as client:
        yield client


def bearer(key):
    return {"authorization": f"Bearer {key}"} if key else {}


def ask(client, method, path, key):
    return client.request(method, httpx.URL("http://test", raw_path=path.encode()), headers=bearer(key))


@pytest.mark.parametrize("key", [None, API, ADMIN])
async def test_e15_without_an_admin_key_there_are_no_such_routes(backend, operations, key):
    async with client_of(backend, operations) as client:
        for method, path in ROUTES:
            assert (await ask(client, method, path, key)).status_code == 404
    async with client_of(backend, operations, api_key=API) as client:
        for method, path in ROUTES:
            assert (await ask(client, method, path, key)).status_code == (404 if key == API else 401)
    assert not operations.asked


@pytest.mark.parametrize("method", METHODS)
async def test_e15_every_path_below_admin_needs_the_admin_key(both, operations, method):
    for path in PATHS:
        for key in (None, API, "wrong", f"{ADMIN}x"):
            answer = await ask(both, method, path, key)
            assert answer.status_code == 401, (path, key)
            assert method == "HEAD" or "admin key" in answer.json()["error"]["message"]
    assert not operations.asked
    for path in PATHS:
        assert (await ask(both, method, path, ADMIN)).status_code in (200, 202, 204, 404, 405)


@pytest.mark.parametrize("method", METHODS)
async def test_e15_what_is_beside_admin_is_not_opened_by_its_key(both, operations, method):
    for path in [*BESIDE, "/v1/models", "/metrics", "/schema/openapi.json", "/ready"]:
        assert (await ask(both, method, path, ADMIN)).status_code == 401, path
    for path in BESIDE:
        assert (await ask(both, method, path, API)).status_code in (404, 405), path
    assert not operations.asked


async def test_an_open_service_has_closed_operations(backend, operations):
    async with client_of(backend, operations, admin_key=ADMIN) as client:
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.get("/admin/tree")).status_code == 401
        assert (await ask(client, "GET", "/admin/tree", ADMIN)).status_code == 200


async def test_the_tree_is_told(both):
    answer = await ask(both, "GET", "/admin/tree", ADMIN)
    assert answer.json() == {"state": "ready", "model": "fake", "url": "http://test", "actors": []}
    assert "x-request-id" in answer.headers


@pytest.mark.parametrize(
    ("path", "order"),
    [
        ("/admin/drain", DrainTree(None)),
        ("/admin/drain?seconds=1.5", DrainTree(1.5)),
        ("/admin/drain?seconds=0", DrainTree(0.0)),
        ("/admin/restart/engine-0", RestartActors("engine-0", None)),
        ("/admin/restart/all?seconds=60", RestartActors("all", 60.0)),
    ],
)
async def test_orders_are_given_as_they_are_written(both, operations, path, order):
    answer = await both.post(path, headers=bearer(ADMIN))
    assert answer.status_code == 202
    assert answer.json() == {"status": "begun", "text": "restarting engine-0"}
    assert operations.asked == [order]
    assert (await both.get(path, headers=bearer(ADMIN))).status_code == 405


@pytest.mark.parametrize("seconds", ["", "-1", "nan", "inf", "1e9", "soon", "1,5"])
async def test_a_time_that_is_none_is_refused(both, operations, seconds):
    for path in ("/admin/drain", "/admin/restart/all"):
        answer = await both.post(path, params={"seconds": seconds}, headers=bearer(ADMIN))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seconds")
    assert not operations.asked


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (OrderEnded(0, "done"), 200, None),
        (OrderEnded(1, "another restart is under way"), 409, "conflict"),
        (OrderEnded(2, "nobody is named engine-9"), 404, "actor_not_found"),
    ],
)
async def test_what_is_said_at_once_is_the_answer(both, operations, said, status, code):
    operations.said = said
    answer = await both.post("/admin/restart/engine-9", headers=bearer(ADMIN))
    assert answer.status_code == status
    if code is None:
        assert answer.json() == {"status": "done", "text": "done"}
    else:
        assert (answer.json()["error"]["code"], answer.json()["error"]["message"]) == (code, said.text)


async def test_errors_have_their_shape(both, operations):
    operations.error = Unavailable("the supervisor did not answer")
    answer = await ask(both, "GET", "/admin/tree", ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    answer = await ask(both, "GET", "/admin/nope", ADMIN)
    assert answer.json()["error"]["message"] == "GET /admin/nope is no route of this server"


async def test_an_upgrade_is_no_way_in(both):
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x", "sec-websocket-version": "13"}
    assert (await both.get("/admin/tree", headers=upgrade)).status_code == 401


async def test_operators_may_have_a_file_of_their_own(backend, operations, tmp_path):
    file = tmp_path / "admin.toml"
    add(file, Key(name="ops", hash=hash_of(ADMIN)))
    async with client_of(backend, operations, admin_keys_file=str(file)) as client:
        assert (await ask(client, "GET", "/admin/tree", ADMIN)).status_code == 200
        assert (await ask(client, "GET", "/admin/tree", API)).status_code == 401


def test_an_admin_key_has_no_limits(tmp_path):
    file = tmp_path / "admin.toml"
    add(file, Key(name="ops", hash=hash_of(ADMIN), max_requests=1))
    with pytest.raises(ConfigError, match="'ops' has a weight or limits"):
        open_keys(HttpConfig(admin_keys_file=str(file)))


@pytest.mark.parametrize("in_file", [False, True])
def test_one_key_is_not_for_both(tmp_path, in_file):
    file = tmp_path / "keys.toml"
    add(file, Key(name="alice", hash=hash_of(ADMIN)))
    clients = {"api_keys_file": str(file)} if in_file else {"api_key": ADMIN}
    with pytest.raises(ConfigError, match="is an admin key and an API key"):
        open_keys(HttpConfig(admin_key=ADMIN, **clients))


@pytest.mark.parametrize("key", ["", " "])
def test_an_empty_key_is_an_error(backend, operations, key):
    with pytest.raises(ConfigError, match="admin_key is empty"):
        create_app(backend, HttpConfig(admin_key=key), operations)
