"""Lines in, answers out, at a terminal and without one."""

import io

import pytest

from actorlm.chat.terminal import Terminal


class Screen(io.StringIO):
    """A terminal to write to."""

    def isatty(self):
        return True


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_pipe_is_read_line_by_line(ending):
    target = io.StringIO()
    terminal = Terminal(io.StringIO(f"one{ending}{ending} three {ending}last"), target, io.StringIO())
    assert not terminal.interactive
    assert [terminal.read() for _ in range(5)] == ["one", "", " three ", "last", None]
    assert target.getvalue() == "", "no prompts"


def test_a_pipe_with_bytes_that_are_no_text():
    source = io.TextIOWrapper(io.BytesIO(b"caf\xe9\nnext\n"), encoding="utf-8")
    terminal = Terminal(source, io.StringIO(), io.StringIO())
    assert [terminal.read() for _ in range(3)] == ["caf\N{REPLACEMENT CHARACTER}", "next", None]


def test_what_a_model_says_cannot_act_on_a_terminal():
    evil = "a\x1b[2Jb\x9b31mc\x07\r\x7f\n\tdé👩‍🚀"
    screen, file = Screen(), io.StringIO()
    Terminal(io.StringIO(), screen, io.StringIO()).show(evil)
    Terminal(io.StringIO(), file, io.StringIO()).show(evil)
    assert screen.getvalue() == "a[2Jb31mc\n\tdé👩‍🚀"
    assert file.getvalue() == evil, "a file gets what was said"


def test_hints_are_apart():
    target, hints = io.StringIO(), io.StringIO()
    Terminal(io.StringIO(), target, hints).hint("stopped")
    assert (target.getvalue(), hints.getvalue()) == ("", "stopped\n")
