"""A request whose answer is read on a thread while the test does something to its tree."""

import json
import threading
from http.client import HTTPException

from exchange import PATHS, Exchange, body_of
from tree import in_parallel, until

GENERATED = {"ignore_eos": True, "temperature": 0, "max_tokens": 4000}


class Streaming:
    """One completion, streamed and endless unless `fields` say otherwise.

    `ending` is "running", then "done" (a finish reason and [DONE], or a whole body), "error" (an error event and
    [DONE], or a status of its own) or "cut" (anything else). `error` is the error object, `status` the HTTP status.
    """

    def __init__(self, tree, **fields):
        self.texts = []
        self.finish = None
        self.error = None
        self.status = 0
        self.ending = "running"
        self.asked = tree, PATHS[0], GENERATED | {"stream": True} | fields
        self._exchange = Exchange(tree, PATHS[0], body_of(tree, PATHS[0], **self.asked[2]))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def text(self):
        return "".join(self.texts)

    def join(self, seconds=30):
        """Waits for the end; returns how it ended."""
        until(lambda: self.ending != "running", seconds)
        self._exchange.close()
        return self.ending

    def _read(self):
        try:
            self.status = self._exchange.response.status
            answered = self._read_events if self.asked[2]["stream"] else self._read_whole
            ending = answered() if self.status == 200 else self._read_error()
        except (OSError, ValueError, HTTPException):
            ending = "cut"
        self.ending = ending

    def _read_error(self):
        self.error = self._exchange.json()["error"]
        return "error"

    def _read_whole(self):
        self._take(self._exchange.json())
        return "done" if self.finish else "cut"

    def _read_events(self):
        for raw in self._exchange.raw_events():
            if raw == b"data: [DONE]\n\n":
                return "error" if self.error else "done" if self.finish else "cut"
            self._take(json.loads(raw.removeprefix(b"data: ")))
        return "cut"

    def _take(self, event):
        self.error = event.get("error")
        for choice in event.get("choices", ()):
            self.texts.append(choice["text"])
            self.finish = choice["finish_reason"] or self.finish


def running(tree, count, **fields):
    """`count` streams, each of which has begun to answer."""
    streams = [Streaming(tree, prompt=f"{number}", **fields) for number in range(count)]
    until(lambda: all(stream.texts or stream.ending != "running" for stream in streams), 15)
    assert [stream.ending for stream in streams] == ["running"] * count, [stream.error for stream in streams]
    return streams


def assert_undisturbed(streams, seconds=40):
    """Each stream ends as it would have ended had nothing happened; to be asked when the tree is whole again."""
    assert endings(streams, seconds) == ["done"] * len(streams), [stream.error for stream in streams]
    calm = in_parallel([lambda stream=stream: _asked_again(*stream.asked) for stream in streams])
    assert [(stream.text, stream.finish) for stream in streams] == calm


def _asked_again(tree, path, fields):
    answer = tree.post(path, body_of(tree, path, **fields | {"stream": False})).json()["choices"][0]
    return answer["text"], answer["finish_reason"]


def endings(streams, seconds=30):
    """How each stream ended."""
    return [stream.join(seconds) for stream in streams]
