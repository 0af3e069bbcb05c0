"""All ranks of a replica in one process: a thread each, as one runner that a Driver can drive."""

from concurrent.futures import Future, ThreadPoolExecutor

from driving import KERNELS, new_runner

from actorlm.parallel.meeting import Meeting
from actorlm.topology import places

PATIENCE_S = 60.0


class Ranks:
    """Runners of one model that have met in `directory`. Steps are submitted to all; each rank runs them in order."""

    def __init__(self, description, directory, *, tensor=1, pipeline=1, **changes):
        def meet(place):
            return lambda: Meeting(str(directory / "meeting"), place, patience_s=PATIENCE_S, meet_s=PATIENCE_S)

        self.places = places(tensor, pipeline)
        self.runners = [new_runner(description, place=place, meet=meet(place), **changes) for place in self.places]
        self._threads = [ThreadPoolExecutor(1) for _ in self.places]
        self._all(lambda runner: runner.load(lambda done, total: None))
        self._all(lambda runner: runner.warm_up())

    def _all(self, act):
        futures = [thread.submit(act, runner) for thread, runner in zip(self._threads, self.runners, strict=True)]
        return [future.result(PATIENCE_S) for future in futures]

    def submit(self, step) -> list[Future]:
        """One answer a rank, later."""
        return [thread.submit(runner.execute, step) for thread, runner in zip(self._threads, self.runners, strict=True)]

    def execute(self, step):
        """The output rank's answer; nobody else has one."""
        answers = [future.result(PATIENCE_S) for future in self.submit(step)]
        done = [answer for answer in answers if answer is not None]
        assert len(done) == 1
        assert answers[self.places[0].output_rank] is done[0]
        return done[0]

    def close(self):
        for thread in self._threads:
            thread.shutdown()


__all__ = ["KERNELS", "Ranks", "places"]
