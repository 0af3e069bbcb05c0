"""A client against servers that answer oddly: every failure has a name, and connections are used again."""

import asyncio

import pytest
from odd_server import ABORT, CLOSE, END, HANG, HEAD, MODELS, chunk, event, good, odd_server, said, whole

from actorlm.errors import ConfigError
from actorlm.remote.failure import Failure
from actorlm.remote.server import Server

PATH = "/v1/completions"


async def asked(pieces, *, timeout_s=20.0):
    """The body that a server's pieces come to, and the server."""
    async with odd_server(lambda _: pieces) as odd:
        server, body = Server(odd.url, timeout_s=timeout_s), bytearray()
        await server.stream(server.post(PATH, {"prompt": "Hi"}), body.extend)
    return bytes(body), odd


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ([HEAD, chunk(b"abc"), chunk(b"d"), END], b"abcd"),
        ([whole(b"abcd")], b"abcd"),
        ([b"HTTP/1.1 200 OK\r\n\r\nab", b"cd", CLOSE], b"abcd"),
        ([HEAD + chunk(b"abcd")[:5], 0.01, chunk(b"abcd")[5:] + END], b"abcd"),
    ],
    ids=["chunked", "with a length", "until it closes", "torn"],
)
async def test_bodies(pieces, body):
    assert (await asked(pieces))[0] == body


async def test_a_request_is_what_it_says():
    _, odd = await asked([whole({})])
    (one,) = odd.asked
    assert (one.method, one.path, one.body) == ("POST", PATH, {"prompt": "Hi"})
    assert one.headers["host"] == f"127.0.0.1:{odd.port}"
    assert "authorization" not in one.headers


async def test_each_request_has_its_connection():
    async with odd_server(lambda _: good("a")) as odd:
        server = Server(odd.url)
        for _ in range(3):
            await server.stream(server.post(PATH, {}), lambda _: None)
    assert odd.connections == 3


async def test_the_model_and_the_key():
    async with odd_server(lambda _: [MODELS]) as odd:
        assert await Server(f"{odd.url}/v1", api_key="k3y").model() == "odd"
    assert odd.asked[0][:2] == ("GET", "/v1/models")
    assert odd.asked[0].headers["authorization"] == "Bearer k3y"


def refused(status, content):
    return [whole(content, status)]


@pytest.mark.parametrize(
    ("pieces", "kind", "named"),
    [
        (refused("429 Too Many", {"error": {"message": "full", "code": "overloaded"}}), "HTTP 429 overloaded", "full"),
        (refused("400 Bad", {"error": {"message": "no", "code": None, "type": "bad"}}), "HTTP 400 bad", "no"),
        (refused("400 Bad", {"error": "just text"}), "HTTP 400", "just text"),
        (refused("422 No", {"detail": "fastapi"}), "HTTP 422", "fastapi"),
        (refused("500 Oops", b"<html>oops</html>"), "HTTP 500", "oops"),
        (refused("502 Bad", b""), "HTTP 502", ""),
        ([b"HTTP/1.1 500 Oops\r\n\r\nop", b"ps", CLOSE], "HTTP 500", "opps"),
        ([b"HTTP/1.1 307 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n"], "HTTP 307", ""),
        ([b"SSH-2.0-OpenSSH\r\n"], "not HTTP", ""),
        ([HEAD, b"zz\r\n"], "not HTTP", ""),
        ([CLOSE], "connection lost", "the server closed it"),
        ([ABORT], "connection lost", ""),
        ([HEAD, event(said("a")), CLOSE], "connection lost", "the server closed it"),
        ([HEAD, event(said("a")), ABORT], "connection lost", ""),
        ([HEAD, event(said("a")), HANG], "timeout", "0.2 s"),
        ([HANG], "timeout", "0.2 s"),
    ],
)
async def test_every_failure_is_named(pieces, kind, named):
    with pytest.raises(Failure, match=named or None) as failed:
        await asked(pieces, timeout_s=0.2)
    assert failed.value.kind == kind


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"data": []}', b'{"data": [{"id": 5}]}', b"<html>"])
async def test_what_is_no_list_of_models(content):
    async with odd_server(lambda _: [whole(content)]) as odd:
        with pytest.raises(Failure, match="/v1/models|<html>"):
            await Server(odd.url).model()


async def test_nobody_listens():
    async with odd_server(lambda _: []) as odd:
        pass
    with pytest.raises(Failure) as failed:
        await Server(odd.url).model()
    assert failed.value.kind == "connection refused"


async def test_a_receiver_that_raises_ends_the_exchange():
    def receive(_):
        raise BrokenPipeError("nobody reads")

    async with odd_server(lambda _: [HEAD, event(said("a")), HANG]) as odd:
        server = Server(odd.url)
        with pytest.raises(BrokenPipeError, match="nobody reads"):
            await server.stream(server.post(PATH, {}), receive)
        await left(odd)


async def test_who_is_cancelled_closes_the_connection():
    begun = asyncio.Event()
    async with odd_server(lambda _: [HEAD, event(said("a")), HANG]) as odd:
        server = Server(odd.url)
        asking = asyncio.create_task(server.stream(server.post(PATH, {}), lambda _: begun.set()))
        await begun.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await left(odd)


async def left(odd):
    async with asyncio.timeout(10):
        await odd.left.wait()


@pytest.mark.parametrize("key", ["a\nb", "ключ"])
def test_a_key_that_no_header_carries(key):
    with pytest.raises(ConfigError, match="--api-key"):
        Server("http://127.0.0.1:1", api_key=key)
