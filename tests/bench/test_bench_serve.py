"""`actorlm bench serve` against servers that answer oddly: what it counts, names, prints and exits with."""

import asyncio
import json
import re
import signal
import sys

import pytest

from actorlm.bench.prompts import SAMPLES
from actorlm.bench.serve import measure
from actorlm.bench.serve_report import report
from actorlm.bench.traffic import Span, Traffic
from actorlm.remote.server import Server

MAIN = "import sys; from actorlm.cli import main; sys.argv[0] = 'actorlm'; main()"
PATIENCE_S = 60


def counts(odd, prompt):
    """The tokens of a text for a server that counts words, and one more."""
    return odd.whole({"choices": [], "usage": {"prompt_tokens": 1 + len(prompt.split())}})


def answering(odd, pieces):
    """A server that names its model and counts prompts, and streams `pieces`, or what they are for the nth stream."""
    streams = iter(range(10**6))

    def answer(asked):
        if asked.path == "/v1/models":
            return [odd.MODELS]
        if not asked.body.get("stream"):
            return [counts(odd, asked.body["prompt"])]
        return pieces(next(streams)) if callable(pieces) else pieces

    return answer


async def measured(odd, pieces, *, warmup=0, model=None, **traffic):
    lines = []
    asked = Traffic(**{"num_prompts": 6} | traffic)
    async with odd.odd_server(answering(odd, pieces)) as server:
        client = Server(server.url, timeout_s=20)
        run = await measure(client, asked, model=model, warmup=warmup, told=lines.append)
    return report(run, asked, server.url), server, lines


async def test_what_a_good_server_does_is_counted(odd):
    result, server, _ = await measured(odd, odd.good("a", "b", "c"), warmup=2)
    assert (result.model, result.requests.complete, result.requests.failed) == ("odd", 6, 0)
    assert (result.throughput.input_tokens, result.throughput.output_tokens) == (60, 18)
    assert result.latency.between_events_ms.count == 12
    streams = [one.body for one in server.asked if (one.body or {}).get("stream")]
    assert len(streams) == 8, "two that warm up"
    assert {len(body["prompt"].split()) + 1 for body in streams} == {128}, "as this server counts"
    assert len({body["prompt"] for body in streams}) == 8
    assert [body["max_tokens"] for body in streams] == [32, 32, 64, 64, 64, 64, 64, 64]


async def test_the_warm_up_does_not_fill_the_prefix_cache(odd):
    _, server, _ = await measured(odd, odd.good("a"), warmup=1, shared_prefix=100)
    warm, *rest = ([*one.body["prompt"].split()[:99]] for one in server.asked if (one.body or {}).get("stream"))
    assert all(prefix == rest[0] for prefix in rest)
    assert warm != rest[0]


async def test_ids_need_no_counting(odd):
    _, server, _ = await measured(
        odd, odd.good("a"), prompts="ids", input_len=Span(5, 9), vocab_size=7, model="named", output_len=Span(3, 3)
    )
    assert [one.path for one in server.asked] == ["/v1/completions"] * 6
    for one in server.asked:
        assert 5 <= len(one.body["prompt"]) <= 9
        assert set(one.body["prompt"]) <= set(range(7))
        assert (one.body["model"], one.body["max_tokens"]) == ("named", 3)


async def test_requests_wait_for_their_turn(odd):
    result, *_ = await measured(odd, [0.02, *odd.good("a")], max_concurrency=2)
    assert (result.requests.peak, result.requests.complete) == (2, 6)
    assert (await measured(odd, [0.02, *odd.good("a")]))[0].requests.peak == 6


async def test_each_failure_has_its_kind(odd):
    bad = [
        [odd.whole({"error": {"message": "full", "code": "overloaded"}}, "429 Too Many")],
        [odd.HEAD, odd.event(odd.said("a")), odd.ABORT],
        [odd.HEAD, odd.event(odd.said("a")), odd.END],
        [odd.HEAD, odd.event({"error": {"message": "died"}}), odd.END],
        [odd.HEAD, odd.event(b"nonsense"), odd.END],
    ]
    result, *_ = await measured(odd, lambda number: [*bad, odd.good("a")][number % 6])
    kinds = {each.kind for each in result.failures}
    assert kinds == {"HTTP 429 overloaded", "connection lost", "cut off", "error in the stream", "unreadable event"}
    assert (result.requests.complete, result.requests.failed) == (1, 5)


async def test_a_server_that_counts_nothing(odd):
    async with odd.odd_server(
        lambda asked: odd.good("a", usage=None) if asked.body.get("stream") else [odd.whole({"choices": []})]
    ) as server:
        lines = []
        run = await measure(Server(server.url), Traffic(num_prompts=2), model="m", warmup=0, told=lines.append)
    assert any("a word is taken for a token" in line for line in lines)
    result = report(run, Traffic(num_prompts=2), server.url)
    assert not result.throughput.counted
    assert result.throughput.output_tokens == 2
    assert len(server.asked) == 2 + len(SAMPLES)


async def command(server, *options, interrupt_when=None):
    """Runs the command; returns its status, output and errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAIN, "bench", "serve", "--url", server.url, *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(PATIENCE_S):
        if interrupt_when is not None:
            await interrupt_when.wait()
            process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_command_writes_what_it_is_told_to(odd, tmp_path):
    async with odd.odd_server(answering(odd, odd.good("a", "b"))) as server:
        status, out, err = await command(
            server, "--num-prompts", "4", "--json", f"{tmp_path}/r.json", "--plot", f"{tmp_path}/r.svg",
            "--request-rate", "200", "--api-key", "k3y",
        )  # fmt: skip
        printed = await command(server, "--num-prompts", "1", "--json", "-")
    assert (status, "4 of 4, 200 a second" in out) == (0, True), err
    assert json.loads((tmp_path / "r.json").read_text())["requests"]["complete"] == 4
    assert (tmp_path / "r.svg").read_text().startswith("<svg")
    assert json.loads(printed[1])["traffic"]["num_prompts"] == 1
    assert server.asked[0].headers["authorization"] == "Bearer k3y"


async def test_a_server_that_only_fails_is_an_exit_status(odd):
    async with odd.odd_server(
        lambda asked: [odd.MODELS] if asked.method == "GET" else [odd.whole({"error": {"message": "oops"}}, "500 No")]
    ) as server:
        status, out, err = await command(server, "--num-prompts", "5")
    assert status == 1
    assert "0 of 5" in out
    assert "HTTP 500" in out
    assert "oops" in err


async def test_one_that_fails_now_and_then_is_not(odd):
    bad = [odd.HEAD, odd.ABORT]
    async with odd.odd_server(answering(odd, lambda number: bad if number % 2 else odd.good("a"))) as server:
        status, out, _ = await command(server, "--num-prompts", "4", "--warmup", "0")
    assert (status, "2 of 4" in out, "connection lost" in out) == (0, True, True)


async def test_ctrl_c_prints_what_was_measured(odd):
    begun = asyncio.Event()

    def streams(number):
        if number < 4:
            yield from odd.good("a", "b")
            return
        yield odd.HEAD
        yield odd.event(odd.said("a"))
        yield 0.2
        begun.set()
        yield odd.HANG

    async with odd.odd_server(answering(odd, streams)) as server:
        status, out, err = await command(
            server, "--num-prompts", "50", "--max-concurrency", "2", "--warmup", "0", interrupt_when=begun
        )
    assert status == 130, err
    for line in (r"requests complete +4 of 50", r"requests interrupted +2", r"requests not sent +44"):
        assert re.search(line, out), out
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--input-len", "5-3"], "--input-len is '5-3'"),
        (["--request-rate", "0"], "--request-rate is '0'"),
        (["--plot", "x.png"], "--plot is x.png; its name must end with .svg"),
        (["--json", "/no/such/place/x"], "--json is /no/such/place/x"),
        (["--vocab-size", "9"], "--vocab-size goes with --prompts ids"),
        (["--api", "chat", "--prompts", "ids"], "--prompts ids is for --api completions"),
        (["--url", "127.0.0.1:80"], "--url is '127.0.0.1:80'"),
    ],
)
async def test_what_cannot_work_is_said_before_anything_is_asked(odd, options, named):
    async with odd.odd_server(lambda _: []) as server:
        status, _, err = await command(server, *options)
    assert status == 2
    assert err.startswith("actorlm: ")
    assert named in err
    assert not server.asked


async def test_nobody_is_there(odd):
    async with odd.odd_server(lambda _: []) as server:
        pass
    status, _, err = await command(server)
    assert status == 1
    assert err.startswith("actorlm: connection refused: nothing listens at")
