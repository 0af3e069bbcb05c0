"""The gated MLP: down(silu(gate(x)) * up(x)), with gate and up as one matrix."""

from collections.abc import Iterator

from torch import Tensor

from actorlm.kernels.linear import PackedRows
from actorlm.kernels.pages import Arena
from actorlm.kernels.silu_mul import Gates, silu_mul
from actorlm.layers.linear import Linear


class GatedMLP:
    """Sizes in features; `bias` is for all three matrices."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool, arena: Arena) -> None:
        self._shape = intermediate_size, arena.dtype, arena.native
        parts = {"gate": intermediate_size, "up": intermediate_size}
        self.gate_up = Linear(parts, hidden_size, bias=bias, arena=arena)
        self.down = Linear({"down": hidden_size}, intermediate_size, bias=bias, arena=arena)

    def parameters(self) -> Iterator[tuple[str, Tensor | PackedRows]]:
        """(name, the tensor to fill) of gate, up and down."""
        yield from self.gate_up.parameters()
        yield from self.down.parameters()

    def gates(self, num_rows: int) -> Gates:
        """A buffer for so many rows, for this layer and all of its shape."""
        return Gates(num_rows, *self._shape)

    def add_to(self, total_TE: Tensor, x_TE: Tensor, gates: Gates) -> None:
        """Adds mlp(x) to `total`, in place."""
        self.gate_up.write_to(gates.flat_TX, x_TE)
        self.down.add_to(total_TE, silu_mul(gates))
