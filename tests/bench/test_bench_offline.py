"""What `actorlm bench offline` counts, on a clock that the test moves."""

import json
import subprocess
import sys
from itertools import count

import msgspec
import pytest

from actorlm.bench.offline import Workload, check, measure
from actorlm.bench.offline_table import print_report
from actorlm.config import Config
from actorlm.errors import BadRequest
from actorlm.offline.session import Session

MAIN = "import sys; from actorlm.cli import main; sys.argv[0] = 'actorlm'; main()"


@pytest.fixture
def session():
    session = Session(msgspec.convert({"model": {"model_impl": "null"}}, Config), lambda *_: None)
    yield session
    session.close()


def run(session, *, rounds=2, **work):
    lines, ticks = [], count()
    report = measure(
        session, Workload(**work), rounds=rounds, seed=0, weights="auto", kernels="none", told=lines.append,
        clock=lambda: float(next(ticks)),
    )  # fmt: skip
    return report, lines


def test_every_token_is_counted(session):
    report, lines = run(session, num_prompts=4, input_len=10, output_len=5)
    assert len(lines) == len(report.throughput_rounds) == len(report.latency_rounds) == 2
    together, alone = report.throughput, report.latency
    assert together.seconds == 1, "the clock ticks once between its two readings"
    assert (together.requests_per_s, together.output_tokens_per_s, together.total_tokens_per_s) == (4, 20, 60)
    assert together.cached_tokens == 0
    assert (alone.time_to_first_token_ms, alone.time_per_output_token_ms, alone.output_tokens_per_s) == (1000, 1000, 1)
    assert session._engine._core.steps == 3 * (5 + 5)


def test_the_shared_prefix_alone_is_in_the_cache(session):
    report, _ = run(session, num_prompts=400, input_len=40, output_len=2, shared_prefix=32)
    assert all(each.cached_tokens % 32 == 0 for each in report.throughput_rounds)
    assert 0 < report.throughput.cached_tokens < 400 * 32, "those that began with the first find nothing yet"


@pytest.mark.parametrize(
    ("work", "named"),
    [({"input_len": 30_000, "output_len": 5_000}, "30000 .* 5000 tokens are more than the context of 32768")],
)
def test_what_cannot_fit_is_refused(session, work, named):
    with pytest.raises(BadRequest, match=named):
        run(session, **work)


def test_a_prefix_is_shorter_than_the_prompts():
    with pytest.raises(BadRequest, match="--shared-prefix is 128 of 128"):
        check(Workload(input_len=128, shared_prefix=128))


def test_the_table_has_the_medians(session, capsys):
    report, _ = run(session, num_prompts=4, input_len=10, output_len=5)
    print_report(report)
    shown = capsys.readouterr().out
    assert "4 prompts of 10 tokens, 5 out" in shown
    assert "20.00" in shown
    assert "1,000.00" in shown


def test_the_command_prints_json():
    command = [sys.executable, "-c", MAIN, "bench", "offline", "--model-impl", "null", "--json", "--rounds", "3"]
    done = subprocess.run(
        [*command, "--num-prompts", "2", "--output-len", "4"], capture_output=True, text=True, timeout=60, check=True
    )
    report = json.loads(done.stdout)
    assert len(report["throughput_rounds"]) == 3
    assert report["workload"]["num_prompts"] == 2
    assert report["throughput"]["output_tokens_per_s"] > 0
    assert "round 3 of 3" in done.stderr
