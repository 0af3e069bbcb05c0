"""A recorded scheduler decides the same again; another one is found out; a file may end anywhere."""

from random import Random

import pytest
from scheduling_replica import VOCABULARY, SuspiciousWorker, generate

from actorlm.config import BLOCK_SIZE, SchedulerConfig
from actorlm.errors import ActorlmError
from actorlm.messages.executor import StepDone
from actorlm.recording import recorder as recorder_module
from actorlm.recording.recorder import Recorder
from actorlm.recording.records import Admitted, BadRecording, Ended, Header, Planned, Recording, Took, digest
from actorlm.recording.redaction import IDS, Redaction
from actorlm.recording.replay import Replay
from actorlm.scheduling import policy, scheduler
from actorlm.scheduling.core import Core
from actorlm.scheduling.scheduler import Scheduler
from actorlm.wire import int32, read_int32

EOS = (0, 1)


class Recorded:
    """A core with a recorder, and a worker."""

    def __init__(
        self, path, *, redacted=False, max_bytes=2**30, lanes=1, prefix_caching=True, num_blocks=12, **options
    ):
        config = SchedulerConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 48} | options)
        self.header = Header(
            version="1", digest=digest(), recorded="now", actor="engine-0", redacted=redacted, scheduler=config,
            num_blocks=num_blocks, max_model_len=150, eos_token_ids=EOS, vocab_size=IDS if redacted else VOCABULARY,
            prefix_caching=prefix_caching, lanes=lanes,
        )  # fmt: skip
        self.path = path
        self.recorder = Recorder(
            path, self.header, max_bytes=max_bytes,
            redaction=Redaction(b"key", VOCABULARY, EOS) if redacted else None,
        )  # fmt: skip
        replica = Scheduler(
            config, num_blocks=num_blocks, max_model_len=150, eos_token_ids=EOS, prefix_caching=prefix_caching,
            lanes=lanes,
        )  # fmt: skip
        self.core = Core(replica, VOCABULARY, (self.recorder,))
        self.worker = SuspiciousWorker(num_blocks, config.max_num_seqs)
        self.in_flight = []
        self.refused = 0

    def admit(self, number, prompt, **options):
        try:
            self.core.admit(generate(number, prompt, **options))
        except ActorlmError:
            self.refused += 1

    def turn(self):
        """An engine's turn."""
        while (step := self.core.next_step()) is not None:
            self.in_flight.append((step, self.worker.run(step.message)))
        if self.in_flight:
            step, tokens = self.in_flight.pop(0)
            self.core.take(step, StepDone(step.plan.step, int32(tokens), 0))

    def finish(self):
        while self.core.scheduler.has_work or self.in_flight:
            self.turn()
        self.recorder.close()

    def live(self, seed, turns=120):
        """Many come, some leave."""
        random, number = Random(seed), 0
        for _ in range(turns):
            for _ in range(random.choice([0, 0, 0, 1, 3])):
                number += 1
                family, length = random.randint(1, 3), random.choice([1, 15, 16, 17, 40, 90, 200])
                prompt = [position * family % VOCABULARY for position in range(length)] + [random.randrange(VOCABULARY)]
                self.admit(
                    number, prompt, max_tokens=random.choice([1, 5, 30, 60]), ignore_eos=random.random() < 0.7,
                    stop_token_ids=tuple(random.choices(range(VOCABULARY), k=random.choice([0, 2]))),
                    salt=random.choice(["", "tenant"]), tenant=random.choice(["", "alice", "bob"]),
                    weight=random.choice([1.0, 1.0, 3.0]), suspect=random.random() < 0.05,
                    prompt_logprobs=random.choice([None, None, 0]),
                    generated=[5, 6] if random.random() < 0.2 else (),
                )  # fmt: skip
            if random.random() < 0.1:
                self.core.abort(random.sample(range(1, number + 3), 2))
            self.turn()
        self.finish()
        return self


def records_of(path):
    recording = Recording(path)
    return recording, list(recording.records())


def replayed(path):
    recording, records = records_of(path)
    run = Replay(recording.header)
    return run, run.run(records)


@pytest.mark.parametrize("redacted", [False, True], ids=["as it was", "redacted"])
@pytest.mark.parametrize(
    "options",
    [{}, {"lanes": 2}, {"prefix_caching": False}, {"async_scheduling": False}, {"max_waiting": 2},
     {"scheduling_policy": "priority"}],
    ids=str,
)  # fmt: skip
def test_every_decision_is_the_same(tmp_path, options, redacted):
    for seed in range(2):
        live = Recorded(tmp_path / f"{seed}", redacted=redacted, **options).live(seed)
        run, difference = replayed(live.path)
        assert difference is None
        assert run.totals.steps == live.core.steps > 50
        assert run.totals.tokens == sum(len(r.tokens) // 4 for r in records_of(live.path)[1] if isinstance(r, Took))
        assert run.scheduler.num_preemptions == live.core.scheduler.num_preemptions
        assert run.scheduler.prefix_hits == live.core.scheduler.prefix_hits
        assert not run.scheduler.has_work
    assert live.core.scheduler.prefix_hits or not options.get("prefix_caching", True)


def test_a_workload_meets_what_a_scheduler_does(tmp_path):
    """Else equal decisions would say little."""
    live = Recorded(tmp_path / "a", max_waiting=2).live(0)
    assert live.core.scheduler.num_preemptions
    assert live.core.scheduler.prefix_hits
    records = records_of(live.path)[1]
    refusals = {record.refusal for record in records if isinstance(record, Admitted)}
    assert refusals == {None, "overloaded"}
    assert live.refused > sum(isinstance(record, Admitted) and record.refusal is not None for record in records)


@pytest.mark.parametrize("redacted", [False, True])
def test_another_policy_is_found_out(tmp_path, monkeypatch, redacted):
    live = Recorded(tmp_path / "a", redacted=redacted).live(1)
    monkeypatch.setattr(scheduler, "may_enter", lambda *, blocks, free, running: blocks <= free)
    _, difference = replayed(live.path)
    assert difference is not None
    assert any(line.startswith(("added: recorded", "slots: recorded")) for line in difference.lines)


def test_another_share_is_found_out(tmp_path, monkeypatch):
    live = Recorded(tmp_path / "a").live(1)
    ask = policy.Shares.ask
    monkeypatch.setattr(policy.Shares, "ask", lambda self, tokens, *, scored=False: ask(self, min(tokens, 3)))
    _, difference = replayed(live.path)
    assert difference is not None
    assert any(line.startswith("counts: recorded") for line in difference.lines)


def test_a_fault_of_the_scheduler_is_recorded_and_happens_again(tmp_path, monkeypatch):
    live = Recorded(tmp_path / "a")
    live.admit(1, [5, 6, 7])
    live.turn()

    def fail(*_):
        raise AssertionError("a block is lost")

    monkeypatch.setattr(Scheduler, "apply", fail)
    with pytest.raises(AssertionError, match="a block is lost"):
        live.turn()
    live.recorder.close()
    _, difference = replayed(live.path)
    assert difference.lines == ("Took raises AssertionError: a block is lost",)
    assert difference.step == 0
    monkeypatch.undo()
    assert replayed(live.path)[1] is None


def test_a_file_may_end_anywhere(tmp_path):
    live = Recorded(tmp_path / "a").live(2, turns=10)
    whole = live.path.read_bytes()
    total = len(records_of(live.path)[1])
    cut, seen = tmp_path / "cut", set()
    for end in [*range(len(whole) - 200, len(whole), 11), len(whole)]:
        cut.write_bytes(whole[:end])
        run, difference = replayed(cut)
        assert difference is None
        seen.add(run.totals.records)
    assert max(seen) == total
    assert len(seen) > 3
    assert not records_of(live.path)[0].truncated
    recording = Recording(cut)
    cut.write_bytes(whole[:-1])
    recording = Recording(cut)
    assert len(list(recording.records())) == total - 1
    assert recording.truncated


def test_what_cannot_be_replayed_says_why(tmp_path):
    path = Recorded(tmp_path / "a").live(2, turns=3).path
    other = tmp_path / "b"
    other.write_bytes(path.read_bytes().replace(digest().encode(), b"0" * len(digest())))
    with pytest.raises(BadRecording, match="whose records differ"):
        Recording(other)
    other.write_bytes(b"hello")
    with pytest.raises(BadRecording, match="is no recording"):
        Recording(other)
    with pytest.raises(BadRecording, match="No such file"):
        Recording(tmp_path / "c")
    other.write_bytes(path.read_bytes() + b"\x03\0\0\0abc")
    with pytest.raises(BadRecording, match="before byte"):
        list(Recording(other).records())


def test_a_redacted_recording_has_no_token_of_a_text(tmp_path):
    live = Recorded(tmp_path / "a", redacted=True)
    text = [40, 41, 42, 0] * 8
    live.admit(1, text, salt="tenant", tenant="alice", max_tokens=20, ignore_eos=True)
    live.admit(2, [*text, 43], salt="tenant", stop_token_ids=(40,), max_tokens=60)
    live.admit(3, text, salt="other", max_tokens=60, ignore_eos=True)
    live.finish()
    records = records_of(live.path)[1]
    one, two, three = (record.message for record in records if isinstance(record, Admitted))
    ids = [list(read_int32(message.prompt_ids)) for message in (one, two, three)]
    assert ids[0] == ids[1][:32]
    assert ids[0] != ids[2]
    assert len(ids[1]) == 33
    for found in ids:
        ours = [token for token in found if token not in EOS]
        assert len(set(ours)) == len(ours) == len(found) - 8, "equal words are not equal ids"
        assert min(ours) >= VOCABULARY
    written = live.path.read_bytes().decode(errors="replace")
    assert "tenant" not in written
    assert "alice" not in written
    assert one.trace_id == ""
    tokens = {token for record in records if isinstance(record, Took) for token in read_int32(record.tokens)}
    assert all(token >= VOCABULARY or token in (0, 1, 40) for token in tokens)


def test_a_recording_ends_at_its_size_and_serving_goes_on(tmp_path):
    live = Recorded(tmp_path / "a", max_bytes=20_000).live(3)
    recording, records = records_of(live.path)
    assert isinstance(records[-1], Ended)
    assert live.path.stat().st_size < 20_100
    assert not recording.truncated
    run, difference = replayed(live.path)
    assert difference is None
    assert "MiB" in run.totals.ended
    assert live.core.steps > run.totals.steps > 0


class Full:
    """A file on a disk that gets full."""

    def __init__(self, file):
        self.file, self.left = file, 5_000

    def write(self, data):
        self.left -= len(data)
        if self.left < 0:
            raise OSError(28, "No space left on device")
        return self.file.write(data)

    def flush(self):
        self.file.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def test_a_full_disk_ends_the_recording_alone(tmp_path, monkeypatch):
    open_file = recorder_module.os.fdopen
    monkeypatch.setattr(recorder_module.os, "fdopen", lambda *args: Full(open_file(*args)))
    live = Recorded(tmp_path / "a")
    monkeypatch.undo()
    live.live(3)
    run, difference = replayed(live.path)
    assert difference is None
    assert live.core.steps > run.totals.steps > 0


def test_a_disk_that_does_not_keep_up_ends_the_recording(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder_module, "MAX_QUEUED_BYTES", -1)
    live = Recorded(tmp_path / "a").live(3, turns=5)
    assert live.core.steps
    assert len(records_of(live.path)[1]) <= 1


def test_a_step_can_be_looked_at(tmp_path):
    live = Recorded(tmp_path / "a").live(4)
    recording = Recording(live.path)
    run = Replay(recording.header)
    assert run.run(recording.records(), until_step=17) is None
    assert run.steps_in_flight[-1] == 17
    assert run.totals.steps == 18
    planned = next(r for r in records_of(live.path)[1] if isinstance(r, Planned) and r.step == 17)
    running = {request.slot for request in run.scheduler.requests if request.slot >= 0}
    assert set(read_int32(planned.slots)) <= running
    assert sum(len(request.blocks) for request in run.scheduler.requests) * BLOCK_SIZE >= run.scheduler.kv_used_tokens
