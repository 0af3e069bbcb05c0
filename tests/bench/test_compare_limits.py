"""The least time of a row's work, against numbers worked out by hand."""

import pytest
from peers.limits import Machine, Model, seconds
from peers.table import Work

MODEL = Model(body=100, head=50, attention=10)
MACHINE = Machine(read_gb_s=1e-6, fp32_gflop_s=1e-6, bf16_gflop_s=0.0, int8_gop_s=2e-6)
"""A thousand bytes, and a thousand float32 or two thousand int8 operations a second."""


def test_one_stream_waits_for_its_weights():
    # Prompt: 2 * 4 * 100 + 2 * 50 = 900 in matrices, 4 * 10 * (1 + 2 + 3 + 4) = 400 in attention: less than reading.
    assert seconds(Work(1, 4, 3), MODEL, MACHINE, 5000, "fp32") == pytest.approx(3 * 5.0)


def test_many_streams_wait_for_arithmetic():
    prompts = 10 * (2 * 4 * 100 + 4 * 10 * 10 + 2 * 50)
    step = 10 * (2 * 150 + 4 * 10 * (4 + 1.5 + 1))
    assert seconds(Work(10, 4, 3), MODEL, MACHINE, 100, "fp32") == pytest.approx((prompts + 2 * step) / 1000)


def test_int8_speeds_up_matrices_and_not_attention():
    work = Work(1, 4, 1)
    assert seconds(work, MODEL, MACHINE, 1, "int8") == pytest.approx(900 / 2000 + 400 / 1000)
    assert seconds(work, MODEL, MACHINE, 1, "fp32") == pytest.approx(1.3)


def test_without_bfloat16_its_limit_is_that_of_float32():
    assert seconds(Work(1, 4, 1), MODEL, MACHINE, 1, "bf16") == pytest.approx(1.3)


def test_a_shared_prefix_is_computed_once():
    prefix = 2 * 3 * 100 + 4 * 10 * (1 + 2 + 3)
    rest = 2 * (2 * 1 * 100 + 4 * 10 * (3 + 1) + 2 * 50)
    assert seconds(Work(2, 4, 1, shared=3), MODEL, MACHINE, 1, "fp32") == pytest.approx((prefix + rest) / 1000)
