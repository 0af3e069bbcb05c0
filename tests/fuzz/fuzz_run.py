"""Sends a stream of inputs by the thousand, and proves after each that the tree is what it was."""

import itertools
import json
import time
from collections import Counter, deque

from hypothesis import HealthCheck, Phase, given, seed, settings

ROUND = 1000
PART = 250
GROWTH_MIB = 64
LONG_GROWTH_MIB = 256


class Tally:
    """How many inputs of which kind went where."""

    def __init__(self):
        self.sent = Counter()
        self.recent = deque(maxlen=ROUND)

    def report(self, unharmed, directory):
        """Prints what was sent where, and how much each process has grown; leaves the last inputs in a file."""
        print(*self.table(), json.dumps(unharmed.grown()), sep="\n")
        (directory / "inputs").write_text("\n".join(map(repr, self.recent)))

    def table(self):
        """Lines for whoever reads the report."""
        targets = sorted({target for target, _ in self.sent})
        for target in targets:
            kinds = {what: number for (found, what), number in self.sent.items() if found == target}
            yield f"{target}: {sum(kinds.values()):,} ({', '.join(f'{w} {n:,}' for w, n in sorted(kinds.items()))})"


def generate(strategy, count, take, start=0):
    """Gives `take` so many inputs, of which the strategy draws some at a time.

    What it raises ends the run, and hypothesis does not see it.
    """
    taken, failure = 0, []

    def some(values):
        nonlocal taken
        for value in values:
            if failure or taken >= count:
                return
            taken += 1
            try:
                take(value)
            except BaseException as error:  # noqa: BLE001 - raised below
                failure.append(error)

    checks = list(HealthCheck)
    for number in itertools.count(start):
        if taken >= count or failure:
            break
        options = settings(
            max_examples=min(5000, count - taken), phases=[Phase.generate], database=None, deadline=None,
            suppress_health_check=checks,
        )  # fmt: skip
        before = taken
        seed(number)(options(given(strategy)(some)))()
        assert taken > before or failure, "the strategy gives nothing more"
    if failure:
        raise failure[0]


class Unharmed:
    """A tree's processes, memory and log, as they were; `check` compares."""

    def __init__(self, tree, growth_mib):
        tree.sentinel()
        self._tree = tree
        self._pids = tree.processes()
        self._memory = {pid: tree.memory_kib(pid) for pid in self._pids}
        self._allowed = 1024 * growth_mib

    def check(self):
        log = self._tree.log
        assert self._tree.processes() == self._pids, log[-3000:]
        assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
        self._tree.sentinel()
        grown = self.grown()
        if any(growth > self._allowed for growth in grown.values()):
            time.sleep(2)  # what was dropped has a moment to be freed
            grown = self.grown()
        assert max(grown.values()) <= self._allowed, grown

    def grown(self):
        """KiB by process."""
        alive = self._tree.processes()
        return {
            name: self._tree.memory_kib(pid) - self._memory[pid] for pid, name in self._pids.items() if pid in alive
        }
