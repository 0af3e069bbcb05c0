"""Which host has which worker: replicas are packed host by host. Pure.

A replica spans hosts only when it fits none; then each of its stages is on one host where that is possible.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from actorlm.errors import ConfigError


class Slot(NamedTuple):
    """Where one worker runs. `host` is empty if there is only this machine."""

    host: str
    device: int


def place_replicas(replicas: int, tensor: int, pipeline: int, devices: Mapping[str, Sequence[int]]) -> list[list[Slot]]:
    """The slots of each replica's workers, by rank; `devices` are those of each host, in the order in which they fill.

    Raises ConfigError if they are too few.
    """
    free = {host: [Slot(host, device) for device in found] for host, found in devices.items()}
    needed, available = replicas * tensor * pipeline, sum(map(len, free.values()))
    if needed > available:
        listed = ", ".join(f"{host} {len(found)}" for host, found in free.items())
        raise ConfigError(
            f"--dp {replicas} --tp {tensor} --pp {pipeline} need {needed} devices, the hosts have {available}"
            f" ({listed}); lower one of them, or add to hosts.NAME.devices"
        )
    return [_place(tensor, pipeline, free) for _ in range(replicas)]


def _place(tensor: int, pipeline: int, free: dict[str, list[Slot]]) -> list[Slot]:
    whole = _together(tensor * pipeline, free)
    if whole is not None:
        return whole
    return [slot for _ in range(pipeline) for slot in _together(tensor, free) or _apart(tensor, free)]


def _together(count: int, free: dict[str, list[Slot]]) -> list[Slot] | None:
    """So many slots of the first host that has them, taken; None if none has."""
    host = next((host for host, slots in free.items() if len(slots) >= count), None)
    return None if host is None else _take(count, free[host])


def _apart(count: int, free: dict[str, list[Slot]]) -> list[Slot]:
    """So many slots of any hosts, taken."""
    taken: list[Slot] = []
    for slots in free.values():
        taken += _take(min(count - len(taken), len(slots)), slots)
    return taken


def _take(count: int, slots: list[Slot]) -> list[Slot]:
    taken, slots[:count] = slots[:count], []
    return taken
