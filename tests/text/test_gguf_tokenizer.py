"""Tokenizers from GGUF files cut and merge as llama.cpp does; what is not supported is named."""

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import reference, sentencepiece_tokenizer, sentencepiece_vocabulary, write_gguf_tokenizer
from tokenizers import Regex, pre_tokenizers

from actorlm.errors import ModelError
from actorlm.text.gguf_tokenizer import LLAMA3, PRE_TOKENIZERS, QWEN2, gguf_backend

TEXTS = st.one_of(
    st.text(st.sampled_from("aeHt 's12½²\n\r\t.,$+日本é\u0301👩\u200d🚀_|<"), max_size=30),
    st.text(max_size=30).filter(lambda text: text.encode(errors="ignore").decode() == text),
)


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


REFERENCES = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]),
    "gpt-2": byte_level(True),
    "llama-bpe": pre_tokenizers.Sequence([split(LLAMA3), byte_level(False)]),
    "qwen2": pre_tokenizers.Sequence([split(QWEN2), byte_level(False)]),
}


@pytest.fixture(scope="session")
def backends(bpe, tmp_path_factory):
    vocab, merges = bpe
    tokens = sorted(vocab, key=vocab.get)
    directory = tmp_path_factory.mktemp("pre")
    return {
        pre: gguf_backend(write_gguf_tokenizer(directory / f"{pre}.gguf", tokens, pre=pre, merges=merges))
        for pre in PRE_TOKENIZERS
    }


@pytest.mark.parametrize("pre", REFERENCES)
def test_ids_equal_those_of_the_models_own_pre_tokenizer(bpe, backends, pre):
    options = {"ignore_merges": True} if pre == "llama-bpe" else {}
    own = reference(*bpe, REFERENCES[pre], **options)

    @settings(max_examples=150, deadline=None)
    @given(TEXTS)
    def equal(text):
        if pre == "qwen2":
            import unicodedata

            text = unicodedata.normalize("NFC", text)
        assert backends[pre].encode(text).ids == own.encode(text).ids
        assert backends[pre].decode(backends[pre].encode(text).ids) == text

    equal()


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "a   12", ["a", "   ", "1", "2"]),
        ("gpt-2", "a   12", ["a", "  ", " 12"]),
        ("llama-bpe", "a   12345", ["a", "  ", " ", "123", "45"]),
        ("qwen2", "a   12", ["a", "  ", " ", "1", "2"]),
        ("default", "a==b 12345", ["a", "==", "b", " ", "123", "45"]),
        ("smollm", "we'll I'LL", ["we", "'ll", " I", "'", "LL"]),
        ("llama3", "we'll I'LL", ["we", "'ll", " I", "'LL"]),
        ("llama-v3", "x\n\n y", ["x", "\n\n", " y"]),
    ],
)
def test_where_each_pre_tokenizer_cuts(backends, pre, text, pieces):
    cut = backends[pre].pre_tokenizer.pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in cut] == pieces


def test_qwen2_composes(backends):
    assert backends["qwen2"].encode("e\u0301").ids == backends["qwen2"].encode("é").ids


def test_control_tokens_are_special_and_user_defined_ones_whole(bpe, tmp_path):
    vocab, merges = bpe
    tokens = [*sorted(vocab, key=vocab.get), "<|end|>", "<tool>"]
    types = [1] * len(vocab) + [3, 4]
    backend = gguf_backend(write_gguf_tokenizer(tmp_path / "t.gguf", tokens, types=types, pre="gpt-2", merges=merges))
    end, tool = len(vocab), len(vocab) + 1
    ids = backend.encode("a<tool>b<|end|>").ids
    assert tool in ids
    assert ids[-1] == end
    assert backend.decode(ids) == "a<tool>b"
    assert backend.decode(ids, skip_special_tokens=False) == "a<tool>b<|end|>"


@pytest.mark.parametrize(
    ("pre", "keys", "ends"),
    [
        ("gpt-2", {}, ([], [])),
        ("llama-bpe", {}, ([0], [])),
        ("llama-bpe", {"add_bos_token": False}, ([], [])),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, ([0], [1])),
    ],
)
def test_tokens_around_a_text(bpe, tmp_path, pre, keys, ends):
    vocab, merges = bpe
    tokens = sorted(vocab, key=vocab.get)
    path = write_gguf_tokenizer(
        tmp_path / "t.gguf", tokens, pre=pre, merges=merges, bos_token_id=0, eos_token_id=1, **keys
    )
    backend = gguf_backend(path)
    plain = backend.encode("abc", add_special_tokens=False).ids
    assert backend.encode("abc").ids == [*ends[0], *plain, *ends[1]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"pre": "tekken"},
            r"pre-tokenizer tekken \(tokenizer\.ggml\.pre\), which is not supported; supported: smollm",
        ),
        ({"model": "t5"}, "of the kind t5, which is not supported; supported: gpt2, llama"),
        ({"pre": "gpt-2", "merges": [("zzz", "y")]}, "tokenizer in .* is damaged"),
        ({"pre": "llama3", "bos_token_id": 3}, "tokenizer in .* is damaged"),
        ({"model": "llama", "scores": [0.0]}, "tokenizer in .* is damaged"),
    ],
)
def test_refusals(tmp_path, options, words):
    with pytest.raises(ModelError, match=words):
        gguf_backend(write_gguf_tokenizer(tmp_path / "t.gguf", ["a", "b", "c"], **options))


def test_a_file_without_tokenizer(tmp_path):
    path = write_gguf_tokenizer(tmp_path / "t.gguf", ["a"])
    path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz"))
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.\*: .*`tokens`"):
        gguf_backend(path)


def llama_cpp_sentencepiece(text, tokens, scores):
    """SentencePiece's BPE as llama.cpp runs it: the neighbours whose union has the best score, leftmost first."""
    ids = {token: index for index, token in enumerate(tokens)}
    symbols = list(text)
    after = [*range(1, len(symbols)), -1] if symbols else []
    before = list(range(-1, len(symbols) - 1))
    queue = []

    def offer(left, right):
        if left >= 0 and right >= 0 and (union := symbols[left] + symbols[right]) in ids:
            heapq.heappush(queue, (-scores[ids[union]], left, right, union))

    for i in range(len(symbols) - 1):
        offer(i, i + 1)
    while queue:
        _, left, right, union = heapq.heappop(queue)
        if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != union:
            continue
        symbols[left], symbols[right] = union, ""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    found = []
    for symbol in filter(None, symbols):
        found += [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("abchelowrd. 日本é👩"), max_size=30))
def test_sentencepiece_merges_as_llama_cpp(spm_tokenizer, text):
    tokens, _, scores = sentencepiece_vocabulary()
    expected = llama_cpp_sentencepiece("▁" + text.replace(" ", "▁"), tokens, scores) if text else []
    assert spm_tokenizer.encode(text) == [1, *expected]
    assert spm_tokenizer.decode([1, *expected]) == text


def test_sentencepiece_prefixes_a_space_after_special_tokens_too(spm_tokenizer):
    hello = spm_tokenizer.backend.token_to_id("▁hello")
    assert spm_tokenizer.encode("hello</s>hello") == [1, hello, 2, hello]


def test_sentencepiece_without_prefix(tmp_path):
    tokenizer = sentencepiece_tokenizer(tmp_path / "t.gguf", add_space_prefix=False, add_bos_token=False)
    assert tokenizer.encode("hello") == [tokenizer.backend.token_to_id("hello")]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"
