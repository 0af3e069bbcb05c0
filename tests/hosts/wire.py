"""A wire between network namespaces that a test can cut, delay and disturb: TAP devices, and a process between them.

Run as a process of its own: `python wire.py NAMESPACE...`. Port i of the wire is device `wire` in namespace i; the last
port is device `wire` where the wire is started, which is the test's. Each line of its standard input is answered:

    cut I J     drop all frames between ports I and J, without a word
    heal I J    carry them again
    delay MS    hold each frame for so long
    lose SHARE  drop this share of all frames
"""

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from pathlib import Path

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
NAME = b"wire"
LONGEST_FRAME = 1 << 16
CLONE_NEWNET = 0x40000000


def open_tap(namespace=None):
    """A new TAP device in a namespace, or in our own."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    if namespace:
        _enter(os.open(f"/var/run/netns/{namespace}", os.O_RDONLY))
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", NAME, IFF_TAP | IFF_NO_PI))
    _enter(here)
    return descriptor


def _enter(descriptor):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(descriptor)


class Wire:
    """A switch that floods: a frame that comes in at one port leaves by all others that know its destination."""

    def __init__(self, ports, seed=0):
        self._ports = ports
        self._at = {}
        self._cut = set()
        self._delay_s = 0.0
        self._lost_share = 0.0
        self._random = random.Random(seed)
        self._waiting = []
        self._count = 0

    def command(self, line):
        match line.split():
            case ["cut", one, other]:
                self._cut |= {(int(one), int(other)), (int(other), int(one))}
            case ["heal", one, other]:
                self._cut -= {(int(one), int(other)), (int(other), int(one))}
            case ["delay", milliseconds]:
                self._delay_s = float(milliseconds) / 1000
            case ["lose", share]:
                self._lost_share = float(share)
            case _:
                raise ValueError(line)

    def run(self):
        commands = sys.stdin.fileno()
        print("up", flush=True)
        while True:
            wait = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            readable, _, _ = select.select([commands, *self._ports], [], [], wait)
            for descriptor in readable:
                if descriptor == commands:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    self.command(line)
                    print("done", flush=True)
                else:
                    self._read(self._ports.index(descriptor))
            self._deliver()

    def _read(self, port):
        while True:
            try:
                frame = os.read(self._ports[port], LONGEST_FRAME)
            except BlockingIOError:
                return
            self._at[frame[6:12]] = port
            known = self._at.get(frame[:6])
            for other in range(len(self._ports)) if known is None else [known]:
                if other != port and (port, other) not in self._cut and self._random.random() >= self._lost_share:
                    self._count += 1
                    heapq.heappush(self._waiting, (time.monotonic() + self._delay_s, self._count, other, frame))

    def _deliver(self):
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, port, frame = heapq.heappop(self._waiting)
            try:
                os.write(self._ports[port], frame)
            except OSError:
                continue  # the device is down, or full: frames get lost on wires


if __name__ == "__main__":
    namespaces = sys.argv[1:]
    assert all(Path("/var/run/netns", name).exists() for name in namespaces)
    Wire([*map(open_tap, namespaces), open_tap()]).run()
