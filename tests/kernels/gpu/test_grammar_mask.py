"""The grammar's bitmask in Triton's interpreter."""

import pytest
import torch

from actorlm.kernels.gpu.bitmask import pack
from actorlm.kernels.gpu.grammar_mask import apply_grammar_mask, reference

VOCAB = 300
MASKS = torch.tensor([1, -1, 0, 1], dtype=torch.int32)


def allowed_of(words=10):
    random = torch.randint(-(2**31), 2**31, (1, words), generator=torch.Generator().manual_seed(1))
    few = torch.zeros(1, words, dtype=torch.int64)
    few[0, :3] = torch.tensor([-(2**31), 1, 6])
    return torch.cat((random, few)).int()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", [10, 9, 8, 12])
def test_as_the_reference(dtype, words):
    """Also where the bitmask is shorter than the vocabulary, or longer."""
    logits = torch.randn(4, VOCAB).to(dtype)
    expected, allowed = logits.clone(), allowed_of(words)
    reference(expected, MASKS, allowed)
    apply_grammar_mask(logits, MASKS, allowed, block=128)
    assert torch.equal(logits, expected)


def test_which_tokens_stay():
    logits = torch.zeros(4, VOCAB)
    apply_grammar_mask(logits, MASKS, allowed_of(), block=128)
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == [31, 32, 65, 66]
    assert torch.equal(logits[0], logits[3])
    assert logits[1].isfinite().all()
    assert 0 < logits[2].isfinite().sum() < VOCAB


def test_rows_of_a_wider_buffer():
    """What lies behind a row is not its own."""
    buffer = torch.zeros(4, VOCAB + 20)
    apply_grammar_mask(buffer[:, :VOCAB], MASKS, allowed_of(12)[:, :10], block=128)
    assert buffer[:, VOCAB:].isfinite().all()
    assert buffer[0].isfinite().sum() == 4 + 20


def test_packing():
    ids = torch.tensor([0, 31, 32, 63, 64, 299])
    words = pack(ids, VOCAB)
    logits = torch.zeros(1, VOCAB)
    apply_grammar_mask(logits, torch.zeros(1, dtype=torch.int32), words[None], block=512)
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == ids.tolist()


def test_what_the_launcher_refuses():
    logits = torch.zeros(4, VOCAB)
    with pytest.raises(AssertionError, match="masks_S is torch.int32"):
        apply_grammar_mask(logits, MASKS.long(), allowed_of())
    with pytest.raises(AssertionError, match="bitmasks are int32"):
        apply_grammar_mask(logits, MASKS, allowed_of().long())
    with pytest.raises(AssertionError, match="dense"):
        apply_grammar_mask(logits[:, ::2], MASKS, allowed_of())
