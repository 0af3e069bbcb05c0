"""Lines of the log, in both formats, as another process writes them."""

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from datetime import datetime, timedelta


def lines_of(script, *, log_format="json", level="info"):
    begin = f"from actorlm.log import configure_logging\nconfigure_logging({level!r}, 'engine-0', {log_format!r})\n"
    begin += "import structlog\nlog = structlog.get_logger('a')\n"
    ran = subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout == ""
    return ran.stderr.splitlines()


def events_of(script, **options):
    return [json.loads(line) for line in lines_of(script, **options)]


def test_a_line_is_one_object_with_who_said_it_and_when():
    (line,) = events_of("log.warning('full', request_id='a-1', depth=3)")
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert (line["level"], line["event"], line["actor"], line["host"]) == (
        "warning", "full", "engine-0", socket.gethostname(),
    )  # fmt: skip
    assert line["request_id"] == "a-1"
    assert line["depth"] == 3
    assert line["pid"] != os.getpid()
    when = datetime.fromisoformat(line["timestamp"])
    assert when.utcoffset() == timedelta(0)


def test_a_line_of_another_thread_says_whose_it_is():
    (line,) = events_of("""
        import threading
        thread = threading.Thread(target=lambda: log.info("there"))
        thread.start()
        thread.join()
    """)
    assert line["actor"] == "engine-0"


def test_a_traceback_is_a_field():
    (line,) = events_of("""
        try:
            {}["missing"]
        except KeyError:
            log.error("failed", exc_info=True)
    """)
    assert line["event"] == "failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("KeyError: 'missing'")


def test_others_write_in_the_same_format():
    """Loggers and warnings of libraries, prints, wrong formats, threads and the process itself that end by a fault."""
    events = events_of("""
        import logging, sys, threading, warnings
        logging.getLogger("uvicorn.error").warning("refused %s", "it")
        logging.getLogger("x").error("wrong %d", "format")
        try:
            1 / 0
        except ZeroDivisionError:
            logging.getLogger("ray").exception("lost")
        warnings.warn("old")
        print("printed", "twice")
        print("bar 1\\rbar 2", file=sys.stderr)
        import click
        click.echo("click", err=True)
        try:
            sys.stderr.fileno()
        except OSError:
            print("no descriptor")
        thread = threading.Thread(target=lambda: [][0])
        thread.start()
        thread.join()
        raise SystemError("last")
    """)
    told = [line["event"] for line in events]
    assert told[0] == "refused it"
    assert events[0]["logger"] == "uvicorn.error"
    assert told[1] == "a log line could not be formatted"
    assert told[2] == "lost"
    assert "ZeroDivisionError" in events[2]["exception"]
    assert "UserWarning: old" in told[3]
    assert told[4:9] == ["printed twice", "bar 1", "bar 2", "click", "no descriptor"]
    assert told[9:] == ["uncaught exception"] * 2
    assert "IndexError" in events[9]["exception"]
    assert "SystemError: last" in events[10]["exception"]
    assert all(line["actor"] == "engine-0" and line["pid"] for line in events)


def test_what_json_cannot_say_is_told_by_its_repr():
    first, second, third = events_of(r"""
        log.info("odd", value={1, }, kind=int, number=float("nan"))
        log.info("half a \ud83d character", keys={(1, 2): 3})
        circle = []; circle.append(circle)
        log.info("round", circle=circle)
    """)
    assert first["kind"] == "<class 'int'>"
    assert first["number"] is None
    assert second["event"] == "half a \\ud83d character"
    assert second["keys"] == "{(1, 2): 3}"
    assert third["circle"] == "[[...]]"


def test_the_level_is_the_least_severity_shown():
    assert [line["event"] for line in events_of("log.debug('a'); log.info('b'); log.error('c')", level="error")] == [
        "c"
    ]
    assert len(events_of("log.debug('a')", level="debug")) == 1


def test_console_lines_are_for_people():
    (first, second) = lines_of(
        "import logging; log.warning('full', depth=3); logging.getLogger('x').error('own')", log_format="console"
    )
    assert re.match(r"\d\d:\d\d:\d\d \[warning +\] full.*actor=engine-0 depth=3", first)
    assert re.match(r"\d\d:\d\d:\d\d \[error +\] own.*actor=engine-0.*", second)


def test_a_screen_in_the_log():
    phase, line, lost, ready = events_of("""
        from actorlm.screen import screen_for
        screen = screen_for("json")
        screen.phase("engine-0", "import", 1.25)
        screen.line("warning: little")
        screen.bar("engine-0", 1, 2)
        screen.line("lost engine-0\\nTraceback\\n  line", "warning")
        screen.ready("http://x serves y")
        screen.close()
    """)
    assert (phase["event"], phase["of"], phase["seconds"]) == ("phase ended", "engine-0", 1.25)
    assert line["event"] == "warning: little"
    assert (lost["event"], lost["level"], lost["exception"]) == ("lost engine-0", "warning", "Traceback\n  line")
    assert ready["text"] == "http://x serves y"
