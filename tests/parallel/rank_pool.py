"""Processes that stand for devices. They are started once and take the ranks of one model after another.

A rank runs in each process as it does in a Worker: the model of its place, steps in order. `replica` gives what a
Driver drives.
"""

import multiprocessing
import tempfile
from itertools import count
from pathlib import Path

PATIENCE_S = 100.0


def serve(pipe):
    """A process's whole life: makes a runner, runs its steps, makes the next one."""
    import torch

    from actorlm.execution.runner import Runner
    from actorlm.parallel.meeting import Meeting

    torch.set_num_threads(1)
    runner = None
    while (order := pipe.recv()) is not None:
        try:
            if isinstance(order, dict):
                address, place = order.pop("address"), order["place"]

                def meet(address=address, place=place):
                    return Meeting(address, place, patience_s=PATIENCE_S, meet_s=PATIENCE_S)

                runner = Runner(**order, meet=meet if place.world_size > 1 else None)
                runner.load(lambda done, total: None)
                runner.warm_up()
                pipe.send(runner.bytes_read)
            else:
                pipe.send(runner.execute(order))
        except Exception as error:  # noqa: BLE001 - the test's to see
            pipe.send(error)


class Replica:
    """A model over some processes of the pool, as one runner."""

    def __init__(self, pipes, orders):
        self.pipes = pipes
        self.bytes_read = self._ask(orders)

    def execute(self, step):
        """The output rank's answer, once all ranks have done the step."""
        (done,) = [answer for answer in self._ask([step] * len(self.pipes)) if answer is not None]
        return done

    def _ask(self, orders):
        for pipe, order in zip(self.pipes, orders, strict=True):
            pipe.send(order)
        answers = []
        for pipe in self.pipes:
            assert pipe.poll(PATIENCE_S), "a rank does not answer"
            answers.append(pipe.recv())
        failures = [answer for answer in answers if isinstance(answer, Exception)]
        if failures:
            raise failures[0]
        return answers


class RankPool:
    """`size` processes."""

    def __init__(self, size):
        context = multiprocessing.get_context("spawn")
        self._directory = tempfile.TemporaryDirectory()
        self._meetings = count()
        self.pipes, self._processes = [], []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self._processes.append(process)

    def replica(self, model, *, tensor=1, pipeline=1, first=0, **sizes):
        """A replica on the processes from the `first` on."""
        from actorlm.topology import places

        address = str(Path(self._directory.name) / f"meeting-{next(self._meetings)}")
        common = {
            "model": model,
            "dtype": "float32",
            "kernels": "auto",
            "num_blocks": 128,
            "max_num_seqs": 16,
            "max_model_len": 512,
            "max_num_batched_tokens": 2048,
            "threads": 1,
            "address": address,
        }
        orders = [{**common, **sizes, "place": place} for place in places(tensor, pipeline)]
        return Replica(self.pipes[first : first + len(orders)], orders)

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)
        self._directory.cleanup()
