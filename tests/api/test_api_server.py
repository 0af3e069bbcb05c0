"""uvicorn around the API: clients that go away, limits of heads, start and stop."""

import asyncio
import gc
import json
import re
import signal
import socket
import struct
import time
from email.utils import parsedate_to_datetime

import pytest
from fake_backend import chat, serving, text

from actorlm.api.app import create_app
from actorlm.api.connection import MAX_HEAD_BYTES, LimitedProtocol
from actorlm.api.server import HttpServer
from actorlm.config import HttpConfig

ROUTES = {"/v1/chat/completions": chat, "/v1/completions": text}


def request_bytes(path, body, head=b""):
    content = json.dumps(body).encode()
    start = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
    return start + head + b"content-length: %d\r\n\r\n" % len(content) + content


async def connect(address):
    return await asyncio.open_connection("127.0.0.1", int(address.rsplit(":", 1)[1]))


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - there is nothing to wait for but time
            await asyncio.sleep(0.005)


async def abort_within_a_second(backend, writer, reset):
    assert not any(generation.aborted.is_set() for generation in backend.generations)
    if reset:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
    async with asyncio.timeout(1):
        for generation in backend.generations:
            await generation.aborted.wait()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
async def test_b19_a_client_that_goes_away_ends_its_generation(address, backend, path, *, stream, step, reset):
    backend.hold = {step}
    fields = {"n": 4} if path.startswith("/v1/chat") else {"prompt": ["a", "b", "c", "d"]}
    _, writer = await connect(address)
    writer.write(request_bytes(path, ROUTES[path](stream=stream, ignore_eos=True, **fields)))
    await until(lambda: backend.generations and backend.generations[0].steps == step)
    await asyncio.sleep(0.02)
    await abort_within_a_second(backend, writer, reset)
    assert len(backend.submissions) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_b19_many_clients_go_away_at_once(address, backend, stream):
    backend.hold = {0}
    writers = [(await connect(address))[1] for _ in range(50)]
    for writer in writers:
        writer.write(request_bytes("/v1/completions", text(stream=stream)))
    await until(lambda: len(backend.generations) == 50)
    for writer in writers:
        writer.close()
    await until(lambda: all(generation.aborted.is_set() for generation in backend.generations))


async def test_b19_a_client_that_goes_away_during_its_upload_begins_nothing(address, backend):
    _, writer = await connect(address)
    writer.write(request_bytes("/v1/completions", text())[:-5])
    await asyncio.sleep(0.05)
    writer.close()
    await asyncio.sleep(0.1)
    assert not backend.generations


async def test_b22_nothing_is_kept_of_a_connection_that_was_reset(address):
    def kept():
        gc.collect()
        return [one for one in gc.get_objects() if isinstance(one, LimitedProtocol)]

    assert not kept()
    for _ in range(5):
        reader, writer = await connect(address)
        writer.write(request_bytes("/v1/completions", text()))
        await asyncio.wait_for(reader.readuntil(b"}}}"), 5)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
    await until(lambda: not kept())


async def test_b24_a_client_that_does_not_read_blocks_only_itself(address, backend):
    """It loses nothing either, when it reads at last."""
    backend.words = lambda _: ["x" * 200_000]
    backend.limits = type(backend.limits)(10_000, 8)
    slow_reader, slow_writer = await connect(address)
    slow_writer.write(request_bytes("/v1/completions", text(stream=True, ignore_eos=True, max_tokens=300)))
    await until(lambda: backend.generations and backend.generations[0].steps > 10)
    await asyncio.sleep(0.3)
    blocked_at = backend.generations[0].steps
    assert blocked_at < 300
    reader, writer = await connect(address)
    writer.write(request_bytes("/v1/completions", text(max_tokens=1), b"connection: close\r\n"))
    assert b"200 OK" in await asyncio.wait_for(reader.read(), 5)
    seen = 0
    async with asyncio.timeout(20):
        while b"[DONE]" not in (piece := await slow_reader.read(2**20)):
            seen += piece.count(b"x" * 1000)
    assert backend.generations[0].steps == 300
    assert seen > 300 * 150
    for one in (writer, slow_writer):
        one.close()


async def test_b26_pipelined_requests_are_answered_in_order(address):
    reader, writer = await connect(address)
    one = request_bytes("/v1/completions", text(max_tokens=1))
    last = request_bytes("/v1/completions", text(max_tokens=2), b"connection: close\r\n")
    writer.write(one + last)
    answers = (await asyncio.wait_for(reader.read(), 5)).split(b"HTTP/1.1 200 OK")[1:]
    assert [json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] for answer in answers] == [1, 2]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("cut", [1, 40, 150, 10**6])
async def test_c08_a_request_for_an_upgrade_keeps_its_body(address, cut, chunked):
    """In pieces of any size: what the parser leaves of a piece is taken up where it stopped."""
    upgrade = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    one = request_bytes("/v1/completions", text(max_tokens=1), upgrade)
    if chunked:
        head, _, body = one.partition(b"\r\n\r\n")
        length = b"content-length: %d" % len(body)
        one = head.replace(length, b"transfer-encoding: chunked") + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    last = request_bytes("/v1/completions", text(max_tokens=2), b"connection: close\r\n")
    data = one + one + last
    reader, writer = await connect(address)
    for begin in range(0, len(data), cut):
        writer.write(data[begin : begin + cut])
        await asyncio.sleep(0)
    answers = (await asyncio.wait_for(reader.read(), 5)).split(b"HTTP/1.1 200 OK")[1:]
    assert [json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] for answer in answers] == [
        1,
        1,
        2,
    ]


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 100]
)
async def test_c09_what_is_no_http_gets_an_error_of_our_shape(address, garbage):
    reader, writer = await connect(address)
    writer.write(garbage)
    answer = await asyncio.wait_for(reader.read(), 5)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


async def test_a_head_without_end_is_refused(address):
    reader, writer = await connect(address)
    writer.write(b"GET /health HTTP/1.1\r\nx: ")
    for _ in range(20):
        if not writer.is_closing():
            writer.write(b"x" * MAX_HEAD_BYTES)
        await asyncio.sleep(0.01)
    try:
        answer = await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:  # the refusal can be lost where more of the head was still under way
        return
    assert answer.startswith(b"HTTP/1.1 431")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("begin", [b"0\r\n", b"0\r\nx: ", b"1;x=", b"1"])
@pytest.mark.parametrize("piece", [b"a: b\r\n", b"a"])
async def test_what_surrounds_a_body_is_limited_like_a_head(address, begin, piece):
    """Headers that follow a body, and extensions of its chunks: without a limit the parser would keep them all."""
    reader, writer = await connect(address)
    start = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    writer.write(start + b"transfer-encoding: chunked\r\n\r\n" + begin)
    answer = asyncio.create_task(reader.read(12))
    while not answer.done():
        writer.write(piece * (MAX_HEAD_BYTES // 10 // len(piece)))
        await asyncio.sleep(0.05)
    assert await answer in (b"HTTP/1.1 400", b"HTTP/1.1 431")
    writer.close()


async def test_headers_after_a_body_are_left_out(address):
    reader, writer = await connect(address)
    content = json.dumps(text(max_tokens=1)).encode()
    start = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    chunks = b"%x\r\n%b\r\n0\r\ncontent-type: text/plain\r\nx: y\r\n\r\n" % (len(content), content)
    writer.write(start + b"transfer-encoding: chunked\r\n\r\n" + chunks)
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_large_body_is_no_large_head(address):
    reader, writer = await connect(address)
    long = text(prompt="x" * 10 * MAX_HEAD_BYTES)
    for _ in range(2):
        writer.write(request_bytes("/v1/completions", long))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert head.startswith(b"HTTP/1.1 400")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert json.loads(await reader.readexactly(length))["error"]["code"] == "context_length_exceeded"
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a07_a10_stop_waits_for_answers_and_then_cuts_them(backend, stream):
    backend.hold = {2}
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = HttpServer(create_app(backend, HttpConfig()), sock)
        await server.start()
        reader, writer = await connect(f":{sock.getsockname()[1]}")
        writer.write(request_bytes("/v1/completions", text(stream=stream)))
        await until(lambda: backend.generations and backend.generations[0].steps == 2)
        async with asyncio.timeout(5):
            await server.stop(0.1)
            await backend.generations[0].aborted.wait()
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 200" if stream else b"HTTP/1.1 503")
    assert b"the server is stopping" in answer
    assert (b"data: [DONE]" in answer) == stream


async def test_a09_stop_lets_answers_end(backend):
    backend.hold = {2}
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = HttpServer(create_app(backend, HttpConfig()), sock)
        await server.start()
        reader, writer = await connect(f":{sock.getsockname()[1]}")
        writer.write(request_bytes("/v1/completions", text(stream=True)))
        await until(lambda: backend.generations and backend.generations[0].steps == 2)
        stopping = asyncio.ensure_future(server.stop(5))
        await asyncio.sleep(0.05)
        backend.hold.clear()
        async with asyncio.timeout(5):
            assert b"data: [DONE]" in await reader.read()
            await stopping


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


async def _ask(reader, writer):
    writer.write(HEALTH)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
    return head


async def test_a_connection_that_rests_gets_one_more_request_when_others_take_the_new_ones(backend):
    """One that has been used, and one that has not; and the answer says that it is the last one."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = HttpServer(create_app(backend, HttpConfig()), sock)
        await server.start()
        used, fresh, silent = [await connect(f":{sock.getsockname()[1]}") for _ in range(3)]
        assert b"connection: close" not in await _ask(*used)
        stopping = asyncio.ensure_future(server.stop(5, linger_s=0.3))
        await asyncio.sleep(0.05)
        for reader, writer in (used, fresh):
            assert b"connection: close" in await _ask(reader, writer)
            assert await asyncio.wait_for(reader.read(), 5) == b""
        assert not stopping.done(), "one may still ask"
        assert await asyncio.wait_for(silent[0].read(), 5) == b""
        await asyncio.wait_for(stopping, 5)


async def test_signals_are_left_alone(backend):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    async with serving(create_app(backend, HttpConfig())):
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


async def test_a_server_that_never_started_stops(backend):
    sock = socket.socket()
    await HttpServer(create_app(backend, HttpConfig()), sock).stop(1)
    assert sock.fileno() == -1


async def test_responses_carry_the_date_of_their_second(address):
    dates = []
    for _ in range(2):
        reader, writer = await connect(address)
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        [date] = re.findall(rb"(?im)^date: (.+)\r$", answer)
        dates.append(parsedate_to_datetime(date.decode()).timestamp())
        assert time.time() - 5 < dates[-1] <= time.time()
        await asyncio.sleep(1.01)
    assert dates[0] < dates[1]
