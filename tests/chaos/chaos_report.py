"""What many runs came to: the kills by kind and phase, the streams, the longest pause, memory and descriptors."""

from collections import Counter


class Report:
    """Of all runs that were added to it."""

    def __init__(self):
        self.kills = Counter()
        self.streams = 0
        self.broken = 0
        self.longest_pause_s = 0.0
        self.footprints = []

    def add(self, name, chaos):
        """A run that has ended."""
        self.kills.update((one.kind, one.doing) for one in chaos.met)
        self.streams += len(chaos.streams)
        self.broken += len(chaos.differences())
        self.longest_pause_s = max([self.longest_pause_s, *(one.longest_pause_s for one in chaos.streams)])
        self.footprints.append((name, chaos.before, chaos.after))

    def lines(self):
        """The report, for people."""
        if not self.kills:
            return
        phases = sorted({phase for _, phase in self.kills})
        yield f"{'':8}" + "".join(f"{phase:>9}" for phase in [*phases, "all"])
        for kind in [*sorted({kind for kind, _ in self.kills}), "all"]:
            counts = [self._count(kind, phase) for phase in [*phases, "all"]]
            yield f"{kind:8}" + "".join(f"{count:9}" for count in counts)
        yield f"streams: {self.streams}, broken: {self.broken}; longest pause: {self.longest_pause_s:.1f} s"
        for name, before, after in self.footprints:
            yield f"{name}: KiB of memory and descriptors, before and at the end"
            for actor, (memory, descriptors) in after.items():
                was = before.get(actor, (0, 0))
                yield f"  {actor:14} {was[0]:8} {memory:8} {was[1]:6} {descriptors:6}"

    def _count(self, kind, phase):
        return sum(
            count
            for (one_kind, one_phase), count in self.kills.items()
            if kind in (one_kind, "all") and phase in (one_phase, "all")
        )
