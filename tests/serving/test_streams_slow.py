"""Clients that read a byte a second cost little memory and hold up nobody; they lose nothing, or are told."""

import json
import re
import socket
from contextlib import ExitStack, closing
from functools import partial

import null_model
import pytest
from beside import Beside
from exchange import PATHS, body_of
from tree import in_parallel, until

pytestmark = [pytest.mark.serving]

COMPLETIONS = PATHS[0]
CLIENTS = 20
MIB = 1024
"""In KiB."""


class SlowReader:
    """A stream with the largest events there are, through the smallest buffer there is."""

    def __init__(self, tree, number, tokens):
        self.name = f"slow-{number}"
        self._number = number
        self._tokens = tokens
        fields = {"prompt": [number], "seed": number + 1, "max_tokens": tokens, "ignore_eos": True, "n": 2}
        data = json.dumps(body_of(tree, COMPLETIONS, stream=True, logprobs=20, **fields)).encode()
        head = b"POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\nx-request-id: %b\r\n"
        head += b"content-length: %d\r\n\r\n"
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        self._sock.settimeout(120)
        self._sock.connect(("127.0.0.1", tree.port))
        self._sock.sendall(head % (self.name.encode(), len(data)) + data)
        self._read = b""
        self.sizes = []
        """Tokens of each event that has some, once all is read."""

    def expected(self):
        """The texts of the whole stream."""
        options = {"seed": self._number + 1, "ends": ()}
        return [null_model.answer([self._number], self._tokens, choice=choice, **options) for choice in range(2)]

    def read_a_byte(self):
        self._read += self._sock.recv(1)

    def read_all(self):
        """The texts of the stream, read to its end as fast as it comes now; and its error, if it ends with one."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        while piece := self._sock.recv(1 << 20):
            self._read += piece
        _, _, chunks = self._read.partition(b"\r\n\r\n")
        events = [line[6:] for line in _joined(chunks).split(b"\n") if line.startswith(b"data: ")]
        assert events.pop() == b"[DONE]"
        bodies = [json.loads(event) for event in events]
        error = bodies.pop()["error"] if "error" in bodies[-1] else None
        choices = [body["choices"][0] for body in bodies]
        self.sizes = [len(choice["logprobs"]["tokens"]) for choice in choices if choice["logprobs"]]
        return ["".join(one["text"] for one in choices if one["index"] == index) for index in range(2)], error

    def close(self):
        self._sock.close()


def _joined(chunks):
    """What is in HTTP's chunks: an event may be cut anywhere."""
    whole = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        whole, chunks = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return whole


class Watch(Beside):
    """Reads a byte of every stream each second, and looks how much memory the tree has taken at most."""

    def __init__(self, tree, readers):
        super().__init__(1)
        self._tree = tree
        self._readers = readers
        self._pids = tree.processes()
        self._before = self._memory()
        self.most = dict.fromkeys(self._before, 0)

    def _memory(self):
        return {title: self._tree.memory_kib(pid) for pid, title in self._pids.items()}

    def _look(self):
        for title, kib in self._memory().items():
            self.most[title] = max(self.most[title], kib - self._before[title])

    def __exit__(self, *_):
        super().__exit__()
        self._look()

    def step(self):
        for reader in self._readers:
            reader.read_a_byte()
        self._look()


@pytest.mark.parametrize("tokens", [500, pytest.param(25_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_b24_who_reads_slowly_costs_little_and_holds_up_nobody(tree_of, tokens):
    """Short streams wait for their clients, whole; of long ones with their log-probabilities too much would wait."""
    tree = tree_of("--model-impl", "null", "--max-num-seqs", 4 * CLIENTS)
    accepted = tree.total("requests_accepted_total")
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(SlowReader(tree, number, tokens))) for number in range(CLIENTS)]
        with Watch(tree, readers) as watch:
            until(lambda: tree.total("requests_accepted_total") == accepted + 2 * CLIENTS, 10)
            fast = [partial(tree.streamed_text, [7, number], seed=1, max_tokens=200) for number in range(CLIENTS)]
            assert in_parallel(fast) == [null_model.answer([7, number], 200, seed=1) for number in range(CLIENTS)]
            until(lambda: tree.total("num_requests_running") == 0, 300)
        print({title: f"{kib / MIB:.0f} MiB at most" for title, kib in watch.most.items()})
        assert max(watch.most.values()) < 50 * MIB
        for reader in readers:
            texts, error = reader.read_all()
            if error is None:
                assert texts == reader.expected()
                assert sum(reader.sizes) == 2 * tokens
                assert len(reader.sizes) < tokens / 2, "what waited was not merged"
            else:
                assert tokens > 500
                assert error["code"] == "overloaded"
                assert all(map(str.startswith, reader.expected(), texts))
                assert re.search(rf"client left behind .*request_id={reader.name}\b", tree.log)
    tree.settled()
