"""What keys cost: messages over TCP on one machine, with CURVE and without, in turn, in one run.

    python benchmarks/curve.py [--sizes 100 1000 16000] [--rounds 7] [--messages 2000] [--json FILE]

Two processes with the event loop of the product. `round trip` is the median time of a message to the other process and
of its answer, one at a time; `stream` is the time for each of many messages one way, answered by one at the end;
`connect` is the time from the first Hello to the session. Each row is the median over rounds of pairs: a round without
keys, and one with them, after each other.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from actorlm.make_keys import make
from actorlm.runtime.curve import Security
from actorlm.runtime.errors import PeerFull
from actorlm.runtime.events import LinkUp
from actorlm.runtime.fingerprint import fingerprint
from actorlm.runtime.identity import this_process
from actorlm.runtime.mailbox import Mailbox, Overflow
from actorlm.runtime.zeromq import ZeroMQNetwork
from actorlm.topology import Role
from actorlm.wire import Message

BATCH = 100


class Data(Message):
    """Some bytes; whoever gets one that is `asking` answers with another."""

    asking: bool
    data: bytes


PROTOCOL = fingerprint({"either": Data}, version=1)


async def serve(keys: str | None, address: Any, ended: Any) -> None:
    """Answers what asks, until `ended`."""
    network = ZeroMQNetwork(PROTOCOL, high_water=100_000, security=Security.of(keys, Role.FRONTEND))
    box: Mailbox[Any] = Mailbox("server", 100_000, Overflow.PAUSE)
    identity = this_process(Role.FRONTEND, "frontend-0")
    server = network.serve("tcp://127.0.0.1:0", identity=identity, mailbox=box, inbox=Data, admits=(Role.CLIENT,))
    address.put(server.address)
    while not ended.is_set():
        try:
            async with asyncio.timeout(0.2):
                messages = await box.drain()
        except TimeoutError:
            continue
        for sender, message in messages:
            if isinstance(message, Data) and message.asking:
                server.send(sender, message)
    await network.close()


def server(keys: str | None, address: Any, ended: Any) -> None:
    """The other process."""
    uvloop.run(serve(keys, address, ended))


class Client:
    """The end of the process that measures."""

    def __init__(self, keys: str | None, address: str) -> None:
        self.network = ZeroMQNetwork(PROTOCOL, high_water=100_000, security=Security.of(keys, Role.CLIENT))
        self.box: Mailbox[Any] = Mailbox("client", 100_000, Overflow.PAUSE)
        identity = this_process(Role.CLIENT, f"client-{time.time_ns()}")
        self.link = self.network.connect(address, peer="frontend-0", identity=identity, mailbox=self.box, inbox=Data)

    async def up(self) -> None:
        """Until there is a session."""
        while not any(isinstance(message, LinkUp) for _, message in await self.box.drain()):
            pass

    async def say(self, message: Data) -> None:
        """Sends, as soon as there is room."""
        while True:
            try:
                self.link.send(message)
            except PeerFull:
                await asyncio.sleep(0)
            else:
                return


async def connect_us(keys: str | None, address: str, _: int, __: int) -> float:
    """From nothing to a session."""
    began = time.perf_counter()
    client = Client(keys, address)
    await client.up()
    took = time.perf_counter() - began
    await client.network.close()
    return took * 1e6


async def round_trip_us(keys: str | None, address: str, size: int, count: int) -> float:
    """There and back, one at a time."""
    client, times, message = Client(keys, address), [], Data(True, bytes(size))
    await client.up()
    for _ in range(count):
        began = time.perf_counter()
        await client.say(message)
        await client.box.drain()
        times.append(time.perf_counter() - began)
    await client.network.close()
    return statistics.median(times) * 1e6


async def stream_us(keys: str | None, address: str, size: int, count: int) -> float:
    """One way, for each message."""
    client = Client(keys, address)
    await client.up()
    began = time.perf_counter()
    for number in range(1, count + 1):
        await client.say(Data(number % BATCH == 0, bytes(size)))
        if number % BATCH == 0:
            await client.box.drain()
    took = time.perf_counter() - began
    await client.network.close()
    return took / count * 1e6


MEASURED: dict[str, Callable[..., Any]] = {"round trip": round_trip_us, "stream": stream_us, "connect": connect_us}


def main() -> None:
    """Runs all in pairs and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[100, 1_000, 16_000], help="bytes of a message")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--json", type=Path, help="a file for the results")
    asked = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory, "keys")
        make(made, [Role.FRONTEND, Role.CLIENT])
        kinds, addresses, ended, processes = (None, str(made)), {}, spawn.Event(), []
        for keys in kinds:
            found = spawn.Queue()
            processes.append(spawn.Process(target=server, args=(keys, found, ended)))
            processes[-1].start()
            addresses[keys] = found.get(timeout=30)
        rows = []
        for what, measure in MEASURED.items():
            for size in asked.sizes if measure is not connect_us else [0]:
                pairs = [
                    [uvloop.run(measure(keys, addresses[keys], size, asked.messages)) for keys in kinds]
                    for _ in range(asked.rounds)
                ]
                without, with_keys = (statistics.median(column) for column in zip(*pairs, strict=True))
                ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
                rows.append({"what": what, "bytes": size, "plain_us": without, "curve_us": with_keys, "ratio": ratio})
                print(f"{what:>12} {size:>8,} B {without:10.1f} us {with_keys:10.1f} us  x {ratio:.2f}", flush=True)
        ended.set()
        for process in processes:
            process.join(10)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
