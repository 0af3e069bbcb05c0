"""Whatever body comes over HTTP is answered: with what was asked for, or with the error that says what is wrong."""

import http.client
import json

import pytest
from fuzz_run import GROWTH_MIB, LONG_GROWTH_MIB, ROUND, Tally, Unharmed, generate
from fuzz_values import requests
from tree import Tree

pytestmark = [pytest.mark.serving]

ANSWERED = {200, 400, 404, 413, 429}
PATIENCE_S = 5.0


@pytest.fixture(scope="module")
def tree():
    with Tree("--model-impl", "null", "--max-model-len", "2048", "--heartbeat-timeout-s", "60") as one:
        yield one.wait_ready()


class Asking:
    """One connection, made again when it is closed. A long answer is left, which ends it."""

    def __init__(self, port):
        self._port = port
        self._connection = self._connect()

    def _connect(self):
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)

    def ask(self, path, body):
        """The status, and whether the whole answer came."""
        try:
            self._connection.request("POST", path, body, {"content-type": "application/json"})
            response = self._connection.getresponse()
            answer = response.read()
        except (TimeoutError, http.client.HTTPException, ConnectionError) as error:
            self._connection.close()
            return type(error).__name__, b""
        return response.status, answer


@pytest.mark.parametrize(
    ("count", "growth_mib"),
    [
        (1_000, GROWTH_MIB),
        pytest.param(25_000, LONG_GROWTH_MIB, marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
)
def test_e04_whatever_is_asked_over_http(tree, count, growth_mib, tmp_path):
    unharmed = Unharmed(tree, growth_mib)
    tally, asking = Tally(), Asking(tree.port)
    sent = 0

    def ask(one):
        nonlocal sent
        tally.recent.append(one)
        what, path, body = one
        status, answer = asking.ask(path, body)
        tally.sent[path, f"{what}: {status}"] += 1
        sent += 1
        if status != "TimeoutError":
            assert status in ANSWERED, (status, path, body, answer[:2000])
        if status in ANSWERED - {200}:
            error = json.loads(answer)["error"]
            assert isinstance(error["message"], str), (path, body, answer)
        if sent % ROUND == 0:
            unharmed.check()

    try:
        generate(requests(), count, ask)
    finally:
        tally.report(unharmed, tmp_path)
    unharmed.check()
    tree.settled()
