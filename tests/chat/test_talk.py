"""The loop of a conversation, with a source that says what a test wants."""

import asyncio
import io
import signal
import threading

import pytest

from actorlm.chat.background import Background
from actorlm.chat.conversation import Conversation
from actorlm.chat.talk import Talk
from actorlm.chat.terminal import Terminal
from actorlm.errors import BadRequest, Unavailable


class Parrot:
    """Repeats the last question after the number of messages; does something odd for some questions."""

    def __init__(self):
        self.asked = []
        self.fields = []
        self.cancelled = 0
        self.open_now = False

    async def open(self):
        self.open_now = True
        return "parrot"

    async def close(self):
        self.open_now = False

    async def answer(self, messages, fields, show):
        question = messages[-1]["content"]
        self.asked.append([message["content"] for message in messages])
        self.fields.append(fields)
        if question == "fail":
            show("half ")
            raise BadRequest("no parrot can say that")
        show(f"{len(messages)} ")
        if question == "forever":
            await self._forever()
        show(question)

    async def _forever(self):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Typist(Terminal):
    """A terminal at which somebody types the lines of a text."""

    def __init__(self, text, target, hints):
        super().__init__(io.StringIO(text), target, hints)
        self.typed = iter(text.splitlines())
        self.interactive = True

    def read(self):
        return next(self.typed, None)


@pytest.fixture
def parrot():
    return Parrot()


def talked(parrot, text, *, system=None, kind=Terminal, **fields):
    target, hints = io.StringIO(), io.StringIO()
    terminal = kind(io.StringIO(text), target, hints) if kind is Terminal else kind(text, target, hints)
    with Background() as background:
        fine = Talk(Conversation(system), parrot, fields, terminal, background).run()
    assert not parrot.open_now
    return fine, target.getvalue(), hints.getvalue()


def test_a_line_an_answer(parrot):
    assert talked(parrot, "one\ntwo\n\n  three  \n") == (True, "1 one\n3 two\n5 three\n", "")
    assert parrot.asked[2] == ["one", "1 one", "two", "3 two", "three"]


def test_the_system_prompt_and_the_parameters_come_with_each(parrot):
    talked(parrot, "one\ntwo\n", system="Be brief.", temperature=0.5)
    assert [messages[0] for messages in parrot.asked] == ["Be brief."] * 2
    assert parrot.fields == [{"temperature": 0.5}] * 2


def test_reset_and_exit(parrot):
    assert talked(parrot, "one\n/reset\ntwo\n/exit\nthree\n")[:2] == (True, "1 one\n1 two\n")


def test_what_fails_is_said_and_forgotten(parrot):
    fine, out, hints = talked(parrot, "one\nfail\ntwo\n")
    assert (fine, out) == (False, "1 one\nhalf \n3 two\n")
    assert hints == "actorlm: no parrot can say that\n"
    assert parrot.asked[-1] == ["one", "1 one", "two"]


def test_who_types_sees_what_fails_and_is_given_no_status(parrot):
    assert talked(parrot, "fail\n", kind=Typist)[0] is True


def test_ctrl_c_stops_an_answer_and_no_more(parrot):
    fine, out, hints = talked(parrot, "forever\ntwo\n", kind=Typist)
    assert (fine, out) == (True, "1 \n3 two\n")
    assert "stopped" in hints
    assert parrot.cancelled == 1
    assert parrot.asked[-1] == ["forever", "1 ", "two"], "what was seen of the answer stays"


def test_ctrl_c_ends_a_run_that_nobody_types(parrot):
    with pytest.raises(KeyboardInterrupt):
        talked(parrot, "forever\ntwo\n")
    assert (parrot.cancelled, len(parrot.asked), parrot.open_now) == (1, 1, False)


def test_nobody_is_there(parrot):
    async def nobody():
        raise Unavailable("nothing runs")

    parrot.open = nobody
    with pytest.raises(Unavailable, match="nothing runs"):
        talked(parrot, "one\n")


def test_a_reader_that_leaves_ends_it(parrot):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    terminal = Terminal(io.StringIO("a\nb\n"), Gone(), io.StringIO())
    with Background() as background:
        assert Talk(Conversation(), parrot, {}, terminal, background).run()
    assert len(parrot.asked) == 1
