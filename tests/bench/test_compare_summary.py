"""What rounds of several servers come to."""

import pytest
from peers.limits import Machine, Model
from peers.results import Results, Round, Started
from peers.summary import Spread, limit, machine, ratios, share, spread, values
from peers.svg import svg
from peers.table import FIGURES, Peer
from peers.tables import markdown

FIGURE = {(figure.row, figure.field): figure for figure in FIGURES}
RATE, FIRST, IDLE = FIGURE["one", "tokens_per_s"], FIGURE["prefill", "first_s"], FIGURE["start", "idle_mib"]


def round_of(peer, row, number, rate, first=1.0):
    return Round(
        peer=peer,
        row=row,
        round=number,
        seconds=2.0,
        tokens_per_s=rate,
        first_s=first,
        gap_median_ms=None,
        gap_p99_ms=None,
        prompt_tokens=16,
        output_tokens=128,
        cpu_s=1.0,
        others_cores=0.0,
    )


@pytest.fixture
def results():
    return Results(
        date="2026-01-01T00:00:00",
        commit="abc",
        command=["compare.py"],
        machine={"cpu": "a & b", "family": 1, "model": 2, "cores": 2, "flags": ["avx2"], "memory_gib": 1, "kernel": 6},
        versions={"torch": "2"},
        peers=[
            Peer("actorlm-float32", "actorlm", "f32.gguf", "f32", "fp32"),
            Peer("llama-f32", "llama.cpp", "f32.gguf", "f32", "fp32"),
            Peer("openvino-f16", "openvino", "f16.gguf", "f16", "bf16"),
        ],
        model=Model(body=1000, head=0, attention=0),
        weight_bytes={"f32": 4000, "f16": 2000},
        started=[Started("actorlm-float32", 1.0, 50.0, [], {}), Started("llama-f32", 2.0, 100.0, [], {})],
        rates=[Machine(1.0, 2.0, 0.0, 4.0), Machine(3.0, 4.0, 0.0, 8.0), Machine(2.0, 3.0, 0.0, 5.0)],
        rounds=[
            *(round_of("actorlm-float32", "one", number, rate) for number, rate in enumerate((30.0, 60.0, 50.0))),
            *(round_of("llama-f32", "one", number, rate) for number, rate in enumerate((20.0, 50.0))),
            round_of("actorlm-float32", "prefill", 0, 1.0, first=0.5),
            round_of("openvino-f16", "prefill", 0, 1.0, first=1.0),
        ],
    )


def test_medians_and_their_spread():
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)


def test_the_machine_is_the_median_of_its_measurements(results):
    assert machine(results) == Machine(2.0, 3.0, 0.0, 5.0)


def test_values_are_found_by_round_and_by_start(results):
    assert values(results, "llama-f32", RATE) == {0: 20.0, 1: 50.0}
    assert values(results, "llama-f32", IDLE) == {0: 100.0}
    assert values(results, "openvino-f16", RATE) == {}


def test_ratios_are_those_of_rounds_that_both_have(results):
    found = {ratio.figure: ratio for ratio in ratios(results) if ratio.ours == "actorlm-float32"}
    assert found[RATE].spread == Spread(pytest.approx(1.35), pytest.approx(1.2), pytest.approx(1.5), 2)
    assert (found[RATE].other, found[RATE].reached) == ("llama-f32", True)
    assert (found[FIRST].other, found[FIRST].spread.median, found[FIRST].reached) == ("openvino-f16", 0.5, True)
    assert found[IDLE].spread.median == 0.5


def test_an_aim_that_is_missed_is_said_to_be(results):
    results.rounds = [round_of("actorlm-float32", "one", 0, 119.0), round_of("llama-f32", "one", 0, 100.0)]
    assert [ratio.reached for ratio in ratios(results) if ratio.figure == RATE] == [False]


def test_shares_of_limits_are_one_at_the_limit(results):
    best = limit(results, results.peers[0], RATE)
    assert best == pytest.approx(2e9 / 4000, rel=0.2)
    assert share(RATE, best, best) == share(FIRST, 2.0, 2.0) == 1
    assert share(RATE, 50.0, 100.0) == share(FIRST, 2.0, 1.0) == 0.5
    assert limit(results, results.peers[0], IDLE) is None


def test_tables_and_picture_name_what_was_measured(results):
    text, picture = markdown(results), svg(results)
    assert "| llama-f32 | 35 (20-50) |  |" in text
    assert "| one stream, 16 in, 128 out, tokens/s | actorlm-float32 | llama-f32 | 1.35 (1.20 to 1.50) |" in text
    assert "a &amp; b" in picture
    assert picture.count("not measured") == 4
