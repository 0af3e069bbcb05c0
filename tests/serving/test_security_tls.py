"""TLS in whole trees, whose frontends run on uvloop: who is served, who is not, new certificates."""

import contextlib
import re
import socket
import ssl
import subprocess

import httpx
import openai
import pytest
import trustme
from tree import ACTORLM, Tree, connect, until

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]


class SecureTree(Tree):
    """A tree that speaks TLS, and a client that trusts its authority."""

    def __init__(self, directory, *arguments):
        self.authority = trustme.CA()
        self.certificate, self.key = directory / "certificate.pem", directory / "key.pem"
        self.issue()
        super().__init__("--tls-certificate", self.certificate, "--tls-key", self.key, *arguments)
        self.url = f"https://127.0.0.1:{self.port}"
        self.trust = ssl.create_default_context()
        self.authority.configure_trust(self.trust)
        self.client = connect(self.url, verify=self.trust)

    def issue(self):
        issued = self.authority.issue_cert("127.0.0.1")
        self.certificate.write_bytes(issued.cert_chain_pems[0].bytes())
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.key.chmod(0o600)

    def connect(self):
        """A connection that has not begun to shake hands."""
        return socket.create_connection(("127.0.0.1", self.port), 10)

    def serials(self):
        """The certificates' numbers that new connections get."""
        return {self._serial() for _ in range(8)}

    def _serial(self):
        with self.trust.wrap_socket(self.connect(), server_hostname="127.0.0.1") as connection:
            return connection.getpeercert()["serialNumber"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    with SecureTree(tmp_path_factory.mktemp("tls"), "--model-impl", "null", "--frontends", 2) as tree:
        yield tree.wait_ready()


def test_the_tree_says_https(secure):
    assert re.search(rf"^ready after .*: {secure.url} serves null", secure.log, re.MULTILINE)
    said = subprocess.run([ACTORLM, "ps"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert secure.url in said


def test_the_sdk_is_served(secure):
    with (
        httpx.Client(verify=secure.trust) as http,
        openai.OpenAI(base_url=f"{secure.url}/v1", api_key="none", http_client=http, max_retries=0) as sdk,
    ):
        whole = sdk.completions.create(model="null", prompt="x", max_tokens=50, seed=1)
        stream = sdk.completions.create(model="null", prompt="x", max_tokens=50, seed=1, stream=True)
        assert "".join(event.choices[0].text for event in stream) == whole.choices[0].text


def test_plain_http_is_told_so(secure):
    answer = httpx.get(f"http://127.0.0.1:{secure.port}/health")
    assert answer.status_code == 400
    assert "https://" in answer.json()["error"]["message"]


def test_a_client_that_does_not_read_blocks_only_itself(secure):
    body = b'{"model":"null","prompt":"x","max_tokens":100000,"ignore_eos":true,"stream":true,"n":64}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    with secure.trust.wrap_socket(secure.connect(), server_hostname="127.0.0.1") as connection:
        connection.sendall(head % len(body) + body)
        for _ in range(10):
            secure.sentinel()
    secure.settled()


def test_e04_a_thousand_clients_that_never_finish_keep_nobody_out(secure):
    frontends = [secure.pid(f"frontend-{index}") for index in range(2)]
    before = sum(map(secure.memory_kib, frontends))
    with contextlib.ExitStack() as stack:
        for number in range(2000):
            connection = stack.enter_context(secure.connect())
            if number % 2:
                connection.sendall(b"\x16\x03\x01")
        secure.serials()
        secure.sentinel()
        assert sum(map(secure.memory_kib, frontends)) - before < 160 * 1024
    secure.serials()
    secure.sentinel()


def test_certificates_change_without_a_restart(secure):
    before, stream = secure.serials(), secure.events("/v1/completions", {"prompt": "x", "max_tokens": 2000, "n": 8})
    next(stream)
    secure.issue()
    until(lambda: secure.serials().isdisjoint(before), 5)
    assert sum(1 for _ in stream) > 8
    now = secure.serials()
    secure.key.write_text("words")
    until(lambda: secure.log.count("not read again") == 2, 5)
    assert secure.serials() == now
    assert len({secure.pid("frontend-0"), secure.pid("frontend-1")}) == 2
    assert "lost" not in secure.log
    assert "Traceback" not in secure.log


@pytest.mark.parametrize(
    ("option", "named"), [("--tls-key", "tls_certificate is missing"), ("--tls-certificate", "tls_key")]
)
def test_a_certificate_needs_its_key(tmp_path, option, named):
    command = [ACTORLM, "up", "--model-impl", "null", option, str(tmp_path / "x")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("actorlm: ")
    assert named in ended.stderr
