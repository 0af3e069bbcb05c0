"""Times sums over tensor ranks: through shared memory, and by gloo, in turn, between processes of this machine.

    python benchmarks/collectives.py [--ranks 2] [--rounds 300]

Prints medians in microseconds, and how many times as long gloo takes.
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import torch

from actorlm.kernels.native import Native, best_level
from actorlm.parallel.group import TensorGroup
from actorlm.parallel.meeting import Meeting
from actorlm.topology import Place

SHAPES = [(1, 576), (8, 576), (32, 576), (256, 576), (2048, 576)]
BATCH = 20
"""Sums that are timed together."""


def timed(group: TensorGroup, total: torch.Tensor, part: torch.Tensor) -> float:
    """Microseconds of one sum."""
    began = time.perf_counter_ns()
    for _ in range(BATCH):
        group.add_reduced(total, part)
    return (time.perf_counter_ns() - began) / BATCH / 1000


def run(directory: str, rank: int, size: int, rounds: int) -> None:
    """One rank; the first one prints."""
    torch.set_num_threads(1)
    place = Place(tensor_rank=rank, tensor_size=size)
    shared = Meeting(f"{directory}/shared", place, patience_s=60.0).tensor_group(Native(best_level(), 1))
    gloo = Meeting(f"{directory}/gloo", place, patience_s=60.0).tensor_group(None)
    if rank == 0:
        print(f"{'shape':>12} {'shared memory':>14} {'gloo':>10}   times as long")
    for shape in SHAPES:
        total, part = torch.zeros(shape), torch.ones(shape)
        times: dict[str, list[float]] = {"shared": [], "gloo": []}
        for _ in range(max(3, rounds // BATCH)):
            times["shared"].append(timed(shared, total, part))
            times["gloo"].append(timed(gloo, total, part))
        ours, theirs = statistics.median(times["shared"]), statistics.median(times["gloo"])
        if rank == 0:
            name = " x ".join(map(str, shape))
            print(f"{name:>12} {ours:>11.0f} us {theirs:>7.0f} us   {theirs / ours:.1f}")


def main() -> None:
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=run, args=(str(Path(directory)), rank, options.ranks, options.rounds))
            for rank in range(options.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main()
