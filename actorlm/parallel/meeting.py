"""How the ranks of one replica find each other, and the groups that come of it.

They meet in a store of torch.distributed: a file in the instance's private directory, or `tcp://host:port` where the
first rank listens. Tensor ranks of one machine exchange through memory that the first of them makes and the others open
by its descriptor, so that no name is left anywhere; others, and ranks without native kernels, use gloo.
"""

import errno
import mmap
import os
import socket
from datetime import timedelta
from typing import Any

from torch import distributed

from actorlm.errors import PeerMissing, reason_of
from actorlm.kernels.exchange import Exchange, memory_bytes
from actorlm.kernels.native import Native
from actorlm.parallel.group import Alone, DistributedGroup, TensorGroup, reason
from actorlm.parallel.pipeline import PipelineLink
from actorlm.runtime.identity import machine
from actorlm.topology import Place

dist: Any = distributed  # whose stubs leave out stores and options

MEET_S = 300.0
"""Time that ranks get to come: they import torch, and the slowest of them decides."""

TCP = "tcp://"
LOOPBACK = "127.0.0.1"


class Meeting:
    """One rank among those of its replica. `patience_s` bounds each later wait for another one.

    The ranks of an `occasion` keep to themselves in a store that others use, too, and that `exists` already or that the
    first of them makes. `own` is the address by which others reach this rank, by default the one that the way to
    them begins at. Raises PeerMissing if the others do not come within `meet_s`.
    """

    def __init__(
        self,
        address: str,
        place: Place,
        *,
        patience_s: float,
        meet_s: float = MEET_S,
        occasion: str = "replica",
        exists: bool = False,
        own: str | None = None,
    ) -> None:
        self._own = own
        self._address = address
        self._place = place
        self._patience_s = patience_s
        try:
            timeout = timedelta(seconds=meet_s)
            self._store: Any = dist.PrefixStore(occasion, _open_store(address, place, exists=exists, timeout=timeout))
        except RuntimeError as error:
            raise _missing(f"the ranks cannot meet at {address}", error) from error
        self._tell(f"machine-{place.rank}", machine())

    def tensor_group(self, native: Native | None) -> TensorGroup:
        """The group of this rank's stage."""
        place = self._place
        if place.tensor_size == 1:
            return Alone()
        first = place.pipeline_rank * place.tensor_size
        mates = range(first, first + place.tensor_size)
        if native is not None and hasattr(os, "memfd_create") and self._is_one_machine(mates):
            memory = self._shared_memory(mates, memory_bytes(native, place.tensor_size))
            return Exchange(native, memory, size=place.tensor_size, rank=place.tensor_rank, patience_s=self._patience_s)
        return DistributedGroup(self._gloo(f"tensor-{place.pipeline_rank}", mates), self._patience_s)

    def pipeline(self) -> PipelineLink | None:
        """The ties between stages, or None if there is one stage."""
        place = self._place
        if place.pipeline_size == 1:
            return None
        return PipelineLink(self._gloo("replica", range(place.world_size)), place, self._patience_s)

    def wait_for_all(self, event: str) -> None:
        """Returns when every rank has come to the same `event`."""
        self._tell(f"{event}-{self._place.rank}", "")
        for rank in range(self._place.world_size):
            self._ask(f"{event}-{rank}")

    def least(self, what: str, number: int) -> int:
        """The least number that any rank has."""
        self._tell(f"{what}-{self._place.rank}", str(number))
        return min(int(self._ask(f"{what}-{rank}")) for rank in range(self._place.world_size))

    def first(self, what: str, number: int) -> int:
        """The number that rank 0 has."""
        if self._place.rank == 0:
            self._tell(what, str(number))
        return int(self._ask(what))

    def everyone(self) -> Any:
        """A process group of all ranks."""
        return self._gloo("everyone", range(self._place.world_size))

    def _shared_memory(self, mates: range, size: int) -> mmap.mmap:
        """Memory that all mates map, zeros at first."""
        first = mates[0]
        if self._place.rank != first:
            descriptor = os.open(self._ask(f"memory-{first}"), os.O_RDWR)
            try:
                memory = mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
            self._tell(f"mapped-{self._place.rank}", "")
            return memory
        descriptor = os.memfd_create("actorlm-exchange", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
            self._tell(f"memory-{first}", f"/proc/{os.getpid()}/fd/{descriptor}")
            for mate in mates[1:]:
                self._ask(f"mapped-{mate}")
        finally:
            os.close(descriptor)
        return memory

    def _gloo(self, name: str, ranks: range) -> Any:
        host = LOOPBACK if self._is_one_machine(ranks) else self._own or own_address(self._address)
        options = dist.ProcessGroupGloo._Options()  # noqa: SLF001 - what init_process_group makes from globals
        options._timeout = timedelta(seconds=self._patience_s)  # noqa: SLF001
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]  # noqa: SLF001
        store = dist.PrefixStore(name, self._store)
        try:
            return dist.ProcessGroupGloo(store, ranks.index(self._place.rank), len(ranks), options)
        except RuntimeError as error:
            raise _missing(f"the ranks of {name} do not reach each other", error) from error

    def _is_one_machine(self, ranks: range) -> bool:
        return len({self._ask(f"machine-{rank}") for rank in ranks}) == 1

    def _tell(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def _ask(self, key: str) -> str:
        try:
            value: bytes = self._store.get(key)
        except RuntimeError as error:
            raise _missing(f"nobody has told {key} at {self._address}", error) from error
        return value.decode()


def _open_store(address: str, place: Place, *, exists: bool, timeout: timedelta) -> Any:
    if address.startswith(TCP):
        host, port = address.removeprefix(TCP).rsplit(":", 1)
        about = host.strip("[]"), int(port), place.world_size
        if place.rank == 0 and not exists:
            return dist.TCPStore(*about, True, timeout, multi_tenant=True, master_listen_fd=_listening(*about[:2]))
        return dist.TCPStore(*about, False, timeout)
    store = dist.FileStore(address, place.world_size)
    store.set_timeout(timeout)
    return store


def _listening(host: str, port: int) -> int | None:
    """A descriptor that listens at this address alone; a store by itself would take every one of the machine's.

    None if the address is in use: by another store of this process, which torch then shares. Raises PeerMissing for one
    that is not this machine's.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
            return listening.detach()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise PeerMissing(f"the first rank cannot listen at {host}:{port}: {reason_of(error)}") from error


def own_address(address: str) -> str:
    """The address of this host that the way to `address` (tcp://host:port) begins at. Sends nothing."""
    host, port = address.removeprefix(TCP).rsplit(":", 1)
    family, *_, to = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(to)
        return str(probe.getsockname()[0])


def _missing(what: str, error: RuntimeError) -> PeerMissing:
    return PeerMissing(f"{what}: {reason(error)}")
