"""TLS: who is served, what is refused and how, and certificates that change while connections go on."""

import asyncio
import socket
import ssl
from pathlib import Path

import httpx
import openai
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from fake_backend import chat, serving, text
from structlog.testing import capture_logs

from actorlm.api import tls_listener, watch
from actorlm.api.app import create_app
from actorlm.api.tls import Tls
from actorlm.config import HttpConfig
from actorlm.errors import ConfigError

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(watch, "PERIOD_S", 0.01)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


class Files:
    """A certificate and its key in files."""

    def __init__(self, directory, authority, name=HOST):
        self.certificate, self.key = directory / "certificate.pem", directory / "key.pem"
        self.issue(authority, name)

    def issue(self, authority, name=HOST):
        issued = authority.issue_cert(name)
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.key.chmod(0o600)

    def config(self, **more):
        return HttpConfig(tls_certificate=str(self.certificate), tls_key=str(self.key), **more)

    def tls(self, **more):
        return Tls.of(self.config(**more))


@pytest.fixture
def files(tmp_path, authority):
    return Files(tmp_path, authority)


def trust(authority, **options):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    for name, value in options.items():
        setattr(context, name, value)
    return context


@pytest.fixture
async def secure(backend, files):
    tls = files.tls()
    watching = asyncio.create_task(tls.watch())
    async with serving(create_app(backend, HttpConfig()), tls) as one:
        yield one
    watching.cancel()


def port_of(address):
    return int(address.rsplit(":", 1)[1])


async def connect(address, context=None):
    return await asyncio.open_connection(HOST, port_of(address), ssl=context)


async def status(address, context):
    async with httpx.AsyncClient(verify=context) as client:
        return (await client.get(f"{address}/v1/models")).status_code


async def serial(address, context):
    """The number of the certificate that a new connection gets."""
    _, writer = await connect(address, context)
    number = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return number


async def test_the_sdk_is_served(secure, authority, backend):
    async with (
        httpx.AsyncClient(verify=trust(authority)) as http,
        openai.AsyncOpenAI(base_url=f"{secure}/v1", api_key="none", http_client=http, max_retries=0) as sdk,
    ):
        whole = await sdk.chat.completions.create(**chat())
        stream = await sdk.completions.create(**text(stream=True))
        streamed = "".join([event.choices[0].text async for event in stream])
    assert whole.choices[0].message.content == streamed == "Hello, wörld!"


async def test_a_large_body_passes_whole(secure, authority):
    async with httpx.AsyncClient(verify=trust(authority)) as client:
        answer = await client.post(f"{secure}/v1/completions", json=text(prompt="x" * 3_000_000))
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_modern_versions_are_spoken(secure, authority, version):
    context = trust(authority, minimum_version=version, maximum_version=version)
    assert await status(secure, context) == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_older_versions_are_not(secure, authority):
    context = trust(authority, minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(OSError):
        await connect(secure, context)
    assert await status(secure, trust(authority)) == 200


async def test_whoever_does_not_know_the_authority_leaves(secure):
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        await status(secure, ssl.create_default_context())


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n" + b"x" * 9000, b"x"]
)
async def test_plain_http_is_told_so(secure, data):
    reader, writer = await connect(secure)
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"https://" in answer
    writer.close()


@pytest.mark.parametrize(
    "data", [b"\x16", b"\x16\x03\x01\x00\x00", b"\x16" * 1000, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"]
)
async def test_what_is_no_handshake_ends(secure, authority, data, monkeypatch):
    monkeypatch.setattr(tls_listener, "HANDSHAKE_TIMEOUT_S", 0.3)
    reader, writer = await connect(secure)
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 5)
    assert b"HTTP" not in answer  # an alert, or nothing
    writer.close()
    assert await status(secure, trust(authority)) == 200


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_e04_clients_that_never_finish_keep_nobody_out(secure, authority, monkeypatch):
    """Half of them say nothing, half of them begin; the first that came have to go."""
    monkeypatch.setattr(tls_listener, "MAX_HANDSHAKES", 50)
    before = descriptors()
    stuck = []
    for number in range(1000):
        reader, writer = await connect(secure)
        if number % 2:
            writer.write(b"\x16\x03\x01")
        stuck.append((reader, writer))
    assert await status(secure, trust(authority)) == 200
    async with asyncio.timeout(10):
        for reader, _ in stuck[:900]:
            assert not await reader.read()
    assert descriptors() - before <= 1000 + 60  # both ends are of this process
    for _, writer in stuck:
        writer.close()
    await asyncio.sleep(0.05)
    assert descriptors() - before <= 10


async def test_a_handshake_has_its_time(secure, monkeypatch):
    monkeypatch.setattr(tls_listener, "HANDSHAKE_TIMEOUT_S", 0.1)
    for data in (b"", b"\x16\x03\x01"):
        reader, writer = await connect(secure)
        writer.write(data)
        assert not await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_a_new_certificate_counts_without_a_restart(secure, authority, files):
    context = trust(authority)
    first = await serial(secure, context)
    reader, writer = await connect(secure, context)
    files.issue(authority)
    async with asyncio.timeout(10):
        while await serial(secure, context) == first:  # noqa: ASYNC110 - there is nothing to wait for but time
            await asyncio.sleep(0.01)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200")


async def test_a_broken_pair_is_logged_and_the_old_one_stays(secure, authority, files):
    context = trust(authority)
    first = await serial(secure, context)
    with capture_logs() as logs:
        files.certificate.write_bytes(authority.issue_cert(HOST).cert_chain_pems[0].bytes())
        await asyncio.sleep(0.2)
        assert await serial(secure, context) == first
    [told] = [log for log in logs if log["log_level"] == "error"]
    assert "the key does not belong to the certificate" in told["reason"]


async def test_clients_need_a_certificate_where_an_authority_is_given(backend, files, authority, tmp_path):
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    async with serving(create_app(backend, HttpConfig()), files.tls(tls_client_ca=str(ca))) as address:
        known, unknown = trust(authority), trust(authority)
        authority.issue_cert("client").configure_cert(known)
        assert await status(address, known) == 200
        trustme.CA().issue_cert("client").configure_cert(unknown)
        for context in (trust(authority), unknown):
            with pytest.raises(httpx.TransportError):
                await status(address, context)


async def test_a07_stop_ends_handshakes_too(backend, files):
    async with serving(create_app(backend, HttpConfig()), files.tls()) as address:
        reader, writer = await connect(address)
        writer.write(b"\x16\x03\x01")
        await asyncio.sleep(0.05)
    assert not await asyncio.wait_for(reader.read(), 5)
    writer.close()
    with pytest.raises(OSError):
        socket.create_connection((HOST, port_of(address)), 1)


def encrypted(pem):
    key = serialization.load_pem_private_key(pem, None)
    scheme = serialization.BestAvailableEncryption(b"secret")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, scheme)


BROKEN = {
    "no certificate": (lambda f: f.certificate.unlink(), r"certificate\.pem: No such file"),
    "no key": (lambda f: f.key.unlink(), r"key\.pem: No such file"),
    "an empty certificate": (lambda f: f.certificate.write_text(""), "not what belongs there"),
    "words for a key": (lambda f: f.key.write_text("words"), "not what belongs there"),
    "another's key": (
        lambda f: f.key.write_bytes(trustme.CA().issue_cert(HOST).private_key_pem.bytes()),
        "does not belong to the certificate",
    ),
    "an encrypted key": (lambda f: f.key.write_bytes(encrypted(f.key.read_bytes())), "the key is encrypted"),
    "a key for everybody": (lambda f: f.key.chmod(0o644), r"key\.pem is a secret.*chmod o-r"),
    "a certificate that others may change": (lambda f: f.certificate.chmod(0o666), "chmod go-w"),
    "a directory": (lambda f: (f.key.unlink(), f.key.mkdir(0o700)), r"key\.pem: Is a directory"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_cannot_be_used_is_an_error_at_the_start(files, what):
    damage, named = BROKEN[what]
    damage(files)
    with pytest.raises(ConfigError, match=named):
        files.tls()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tls_certificate": "x"}, "tls_certificate is x, and tls_key is missing"),
        ({"tls_key": "x"}, "tls_key is x, and tls_certificate is missing"),
        ({"tls_client_ca": "x"}, "tls_client_ca is x, and tls_"),
    ],
)
def test_a_certificate_needs_its_key(options, named):
    with pytest.raises(ConfigError, match=named):
        Tls.of(HttpConfig(**options))


def test_a_client_authority_is_checked_as_well(files, tmp_path):
    ca = tmp_path / "ca.pem"
    with pytest.raises(ConfigError, match=r"ca\.pem: No such file"):
        files.tls(tls_client_ca=str(ca))
    ca.write_text("words")
    with pytest.raises(ConfigError, match=r"ca\.pem: not what belongs there"):
        files.tls(tls_client_ca=str(ca))


def test_without_options_there_is_no_tls():
    assert Tls.of(HttpConfig()) is None
