"""The gated MLP: down(silu(gate(x)) * up(x)), with gate and up as one matrix. Tensor ranks share its inner features."""

from collections.abc import Iterator

from torch import Tensor

from actorlm.kernels.native import Native
from actorlm.kernels.silu_mul import Gates, silu_mul
from actorlm.layers.activations import Activations
from actorlm.layers.arena import Arena
from actorlm.layers.linear import ColumnParallel, Features, RowParallel
from actorlm.layers.weight import Weight
from actorlm.partition import share

MAX_ROWS = 128
"""Whose gates stay in the second-level cache of a CPU: a prompt of 1,024 tokens took a tenth less time than whole."""


class GatedMLP:
    """Sizes in features; `bias` is for all three matrices."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool, arena: Arena) -> None:
        inner = Features(intermediate_size, share(intermediate_size, arena.group.size, arena.group.rank))
        self._shape = len(inner.part), arena.dtype, arena.backend
        self._in_pieces = isinstance(arena.backend, Native) and arena.group.launches
        self.gate_up = ColumnParallel({"gate": inner, "up": inner}, hidden_size, bias=bias, arena=arena)
        self.down = RowParallel("down", inner, hidden_size, bias=bias, arena=arena)

    def parameters(self) -> Iterator[Weight]:
        """Those of gate, up and down."""
        yield from self.gate_up.parameters()
        yield from self.down.parameters()

    def gates(self, num_rows: int) -> Gates:
        """A buffer for as many of so many rows as are computed at once, for this layer and all of its shape."""
        return Gates.make(min(num_rows, MAX_ROWS) if self._in_pieces else num_rows, *self._shape)

    def add_to(self, total_TE: Tensor, x_TE: Tensor, work: Activations) -> None:
        """Adds mlp(x) to `total`, in place."""
        most = max(len(work.gates.flat_TX), 1)
        for begin in range(0, len(x_TE), most):
            rows = slice(begin, min(begin + most, len(x_TE)))
            gates = work.gates.first(rows.stop - rows.start)
            self.gate_up.write_to(gates.flat_TX, x_TE[rows])
            self.down.add_to(total_TE[rows], silu_mul(gates), None if work.part_TE is None else work.part_TE[rows])
