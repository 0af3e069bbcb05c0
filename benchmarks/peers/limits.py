"""What a machine could do at best: the time of a row's work at its read bandwidth and its rate of multiply-adds. Pure.

Each prompt token is computed once, a shared prefix once for all, and attention and the logits of the last token with
it; each step of decoding takes as long as reading the weights, or as its arithmetic, whichever is longer. Keys and
values are not counted as reading, nor is anything but the model.
"""

import msgspec

from peers.table import Arithmetic, Work


class Machine(msgspec.Struct, frozen=True):
    """Measured on all threads: GB/s read, and 1e9 additions and multiplications a second; 0 for what it cannot do."""

    read_gb_s: float
    fp32_gflop_s: float
    bf16_gflop_s: float
    int8_gop_s: float

    def rate(self, arithmetic: Arithmetic) -> float:
        """Additions and multiplications a second, in float32 where there is nothing faster."""
        rates = {"fp32": self.fp32_gflop_s, "bf16": self.bf16_gflop_s, "int8": self.int8_gop_s}
        return 1e9 * max(self.fp32_gflop_s, rates[arithmetic])


class Model(msgspec.Struct, frozen=True):
    """Numbers in matrices that every token passes, and in the head; width of all heads together, summed over layers."""

    body: int
    head: int
    attention: int

    def prompt_flop(self, tokens: int, before: int) -> tuple[float, float]:
        """Of a prompt's `tokens` after `before` others: in matrices, and in attention."""
        seen = tokens * before + tokens * (tokens + 1) // 2
        return 2.0 * tokens * self.body, 4.0 * seen * self.attention

    def step_flop(self, before: float) -> tuple[float, float]:
        """Of one token after `before` others on average."""
        return 2.0 * (self.body + self.head), 4.0 * (before + 1) * self.attention


def seconds(work: Work, model: Model, machine: Machine, weight_bytes: float, arithmetic: Arithmetic) -> float:
    """The least that the work takes. Attention is in float32 in every format."""
    matrices, vectors = machine.rate(arithmetic), machine.rate("fp32")
    read = weight_bytes / (1e9 * machine.read_gb_s)

    def compute(flop: tuple[float, float]) -> float:
        return flop[0] / matrices + flop[1] / vectors

    rest = work.input_len - work.shared
    prefix = compute(model.prompt_flop(work.shared, 0)) if work.shared else 0.0
    prompts = work.requests * (compute(model.prompt_flop(rest, work.shared)) + 2.0 * model.head / matrices)
    step = work.requests * compute(model.step_flop(work.input_len + work.output_len / 2))
    return max(prefix + prompts, read) + (work.output_len - 1) * max(step, read)
