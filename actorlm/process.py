"""The entry of every child process: `python -m actorlm.process NAME --parent PID`.

Arranges to die with its supervisor before anything slow is imported, then builds and runs its one actor.
"""

import argparse
import contextlib
import os
import signal
import sys


def main() -> int:
    """Runs one actor until it is told to stop; returns the exit status."""
    parser = argparse.ArgumentParser(prog="actorlm.process")
    parser.add_argument("name")
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()

    from actorlm.runtime.child import (
        SUPERVISORS_SIGNALS,
        die_with_parent,
        read_specification,
        run_reporting,
        take_report_pipe,
    )

    die_with_parent(options.parent)
    for number in SUPERVISORS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # sent to all of a service at times; the supervisor answers them
    report = take_report_pipe()
    specification = read_specification()

    from setproctitle import setproctitle

    setproctitle(f"actorlm {options.name}")

    def run() -> None:
        from actorlm.launch import run_child

        run_child(specification)

    return run_reporting(run, report)


if __name__ == "__main__":
    status = main()
    with contextlib.suppress(OSError):  # its reader may be gone
        sys.stderr.flush()
    os._exit(status)  # threads of libraries must not hold a process that has nothing left to do
