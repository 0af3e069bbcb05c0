"""Tokenizers, each made once."""

import pytest
from text_tokenizers import sentencepiece_tokenizer, trained_bpe, write_gguf_tokenizer

from actorlm.checkpoint.describe import BYTES, describe
from actorlm.checkpoint.pull import pulled_path
from actorlm.checkpoint.resolve import ResolvedModel
from actorlm.text.gguf_tokenizer import gguf_backend
from actorlm.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def byte_tokenizer():
    """The built-in byte vocabulary."""
    return load_tokenizer(BYTES)


@pytest.fixture(scope="session")
def bpe():
    """(vocab, merges) of a byte-level BPE."""
    return trained_bpe()


@pytest.fixture(scope="session")
def bpe_tokenizer(bpe, tmp_path_factory):
    """Byte-level BPE with merges and two special tokens, from a GGUF file."""
    vocab, merges = bpe
    tokens = [*sorted(vocab, key=vocab.get), "<|im_start|>", "<|im_end|>"]
    path = tmp_path_factory.mktemp("bpe") / "bpe.gguf"
    types = [1] * len(vocab) + [3, 3]
    return Tokenizer(gguf_backend(write_gguf_tokenizer(path, tokens, types=types, pre="smollm", merges=merges)))


@pytest.fixture(scope="session")
def spm_tokenizer(tmp_path_factory):
    """SentencePiece's BPE with byte fallback, from a GGUF file."""
    return sentencepiece_tokenizer(tmp_path_factory.mktemp("spm") / "spm.gguf")


@pytest.fixture(scope="session")
def all_tokenizers(byte_tokenizer, bpe_tokenizer, spm_tokenizer):
    """One of each kind."""
    return [byte_tokenizer, bpe_tokenizer, spm_tokenizer]


@pytest.fixture(scope="session")
def smollm2():
    """The description of the default model; skips where it was not pulled."""
    path = pulled_path("smollm2-135m")
    if not path.exists():
        pytest.skip("the default model is not in the cache; run `actorlm pull smollm2-135m`")
    return describe(ResolvedModel(str(path), "gguf", "smollm2-135m"))
