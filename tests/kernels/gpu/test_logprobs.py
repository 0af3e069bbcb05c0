"""logprobs in Triton's interpreter: against its reference, and against what the CPU's workers tell."""

import pytest
import torch

from actorlm.execution.scoring import _append
from actorlm.kernels.gpu.logprobs import Candidates, Wanted, logprobs, reference
from actorlm.logprobs import Entries

VOCAB = 1000
TOLERANCE = {"rtol": 0.0, "atol": 5e-6}


def logits_of(rows, dtype=torch.float32, equals=25):
    """Of which so many are equal, in all blocks, and the highest."""
    logits = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(5)) * 5
    logits[:, : 40 * equals : 40] = 25.0
    return logits.to(dtype)


def wanted_of(counts, by_id=()):
    ids = torch.full((len(counts), max(map(len, by_id), default=0)), -1, dtype=torch.int32)
    for slot, row in enumerate(by_id):
        ids[slot, : len(row)] = torch.tensor(row, dtype=torch.int32)
    return Wanted(torch.tensor(counts, dtype=torch.int32), ids)


def told(logits, slots, tokens, wanted, most_probable, by=logprobs, **options):
    out = Candidates.none(len(logits), most_probable, wanted.ids_RM.shape[1])
    slots, tokens = torch.tensor(slots, dtype=torch.int32), torch.tensor(tokens, dtype=torch.int32)
    by(logits, slots, tokens, wanted, out, **options)
    return out


def assert_same(out, expected):
    assert out.ids_SC.tolist() == expected.ids_SC.tolist()
    assert out.ranks_S.tolist() == expected.ranks_S.tolist()
    torch.testing.assert_close(out.values_SC, expected.values_SC, **TOLERANCE)


MIXED = wanted_of([0, 5, -1, 20, 3], [[], [7, 999, 0], [1], [4], [3, 3]])
SLOTS, TOKENS = [4, 0, 3, -1, 1, 2, 3], [0, 17, 999, 5, 40, 6, 512]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_as_the_reference(dtype):
    """Rows that pad or want nothing stay as they were."""
    args = (logits_of(7, dtype), SLOTS, TOKENS, MIXED, 20)
    out = told(*args, block=256)
    assert_same(out, told(*args, by=reference))
    assert out.ids_SC[[3, 5]].unique().tolist() == [-1]
    assert out.ids_SC[2, 1:21].tolist() == list(range(0, 800, 40))
    assert out.values_SC[2].max() < -1.0


def test_as_a_cpu_tells_it():
    logits = logits_of(7, equals=3)
    out = told(logits, SLOTS, TOKENS, MIXED, 20, block=256)
    for row, (slot, token) in enumerate(zip(SLOTS, TOKENS, strict=True)):
        count = int(MIXED.counts_R[slot])
        if slot < 0 or count < 0:
            continue
        entries, by_id = Entries(), [i for i in MIXED.ids_RM[slot].tolist() if i >= 0]
        _append(entries, logits[row].numpy(), token, count, by_id)
        given = out.ids_SC[row] >= 0
        assert out.ids_SC[row][given].tolist() == entries.ids.tolist()
        assert out.ranks_S[row] == entries.ranks[0]
        torch.testing.assert_close(out.values_SC[row][given], torch.tensor(entries.values), **TOLERANCE)


@pytest.mark.parametrize(("count", "by_id"), [(0, []), (0, [[2, 0]]), (2, [])])
def test_narrow_candidates(count, by_id):
    wanted = wanted_of([count], by_id)
    args = (logits_of(1), [0], [9], wanted, count)
    assert_same(told(*args, block=1024), told(*args, by=reference))


def test_more_than_the_vocabulary_has():
    args = (torch.tensor([[1.0, 3.0, -torch.inf, 3.0, -0.0, 0.0]]), [0], [0], wanted_of([8]), 8)
    out = told(*args, block=16)
    assert out.ids_SC.tolist() == [[0, 1, 3, 0, 4, 5, 2, -1, -1]]
    assert_same(out, told(*args, by=reference))


def test_a_row_is_the_same_anywhere():
    """Bit by bit, in a wider buffer too."""
    logits = logits_of(7)
    out = told(logits, SLOTS, TOKENS, MIXED, 20, block=256)
    wide = torch.full((2, VOCAB + 8), 99.0)
    for row in (0, 2, 4):
        wide[1, :VOCAB] = logits[row]
        alone = told(wide[:, :VOCAB], [-1, SLOTS[row]], [0, TOKENS[row]], MIXED, 20, block=256)
        assert alone.ids_SC[1].tolist() == out.ids_SC[row].tolist()
        assert alone.values_SC[1].tolist() == out.values_SC[row].tolist()
        assert alone.ranks_S[1] == out.ranks_S[row]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers(bad):
    logits = logits_of(2)
    logits[0, 700] = bad
    out = told(logits, [0, 0], [1, 1], wanted_of([0]), 0, block=256)
    assert out.values_SC[:, 0].isfinite().tolist() == [False, True]


def test_blocks_without_any_probability():
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, [300, 301]] = 1000.0
    out = told(logits, [0], [301], wanted_of([3]), 3, block=256)
    torch.testing.assert_close(out.values_SC, torch.tensor([[0.5, 0.5, 0.5, 0.0]]).log(), **TOLERANCE)
    assert out.ids_SC.tolist() == [[301, 300, 301, 0]]


def test_what_the_launcher_refuses():
    logits = logits_of(1)
    with pytest.raises(AssertionError, match="floats"):
        told(logits.long(), [0], [1], wanted_of([0]), 0)
    with pytest.raises(AssertionError, match="a row's logits are dense"):
        told(logits[:, ::2], [0], [1], wanted_of([0]), 0)
    with pytest.raises(AssertionError, match="tokens_S has 1 values"):
        told(logits, [0], [1, 2], wanted_of([0]), 0)
    with pytest.raises(AssertionError, match="the token, the most probable ones and those by id"):
        told(logits, [0], [1], wanted_of([0], [[1, 2]]), -1)
