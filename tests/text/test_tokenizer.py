"""Tokenizers of each source, and the real model's against its golden prompts."""

import json
import sys
import threading
import time
import unicodedata
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import SPECIALS, sentencepiece_vocabulary
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from actorlm.checkpoint.describe import BYTES
from actorlm.errors import BadRequest, ModelError
from actorlm.text.byte_alphabet import CHARACTERS, token_bytes
from actorlm.text.chat_template import load_chat_template
from actorlm.text.gguf_tokenizer import QWEN2
from actorlm.text.tokenizer import NFC_SHRINKS, Tokenizer, byte_backend, load_tokenizer

GOLDEN = json.loads((Path(__file__).parent / "smollm2_prompts.json").read_text())


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2):
    return load_tokenizer(smollm2)


@pytest.mark.parametrize("item", GOLDEN, ids=[item["prompt"][:20] for item in GOLDEN])
def test_the_real_model_renders_and_tokenizes_as_the_reference(smollm2, smollm2_tokenizer, item):
    text = item["prompt"]
    if item["kind"] == "chat":
        text = load_chat_template(smollm2).render([{"role": "user", "content": text}])
        assert text == item["rendered"]
    assert smollm2_tokenizer.encode(text) == item["prompt_ids"]
    assert smollm2_tokenizer.decode(item["greedy_ids"]) == item["greedy_text"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a   12", ["a", "ĠĠĠ", "1", "2"]),
        ("  multiple   spaces", ["Ġ", "Ġmultiple", "ĠĠ", "Ġspaces"]),
    ],
)
def test_the_real_model_splits_digits_and_spaces_as_llama_cpp(smollm2_tokenizer, text, tokens):
    ids = smollm2_tokenizer.encode(text)
    assert [smollm2_tokenizer.backend.id_to_token(i) for i in ids] == tokens


def test_the_end_of_a_text(byte_tokenizer):
    assert byte_tokenizer.encode_end("abc<|im_end|>", 2) == [99, 258]
    assert byte_tokenizer.encode_end("abc", 3) == byte_tokenizer.encode_end("abc", 9) == [97, 98, 99]
    assert byte_tokenizer.encode_end("a" * 100_000 + "bc", 3) == [97, 98, 99]


@pytest.mark.parametrize(
    ("template", "length", "tokens"),
    [
        ("<s> $A", 3, ["<s>", "b", "c"]),
        ("<s> $A", 1, ["<s>"]),
        ("<s> $A </s>", 3, ["<s>", "c", "</s>"]),
        ("$A </s>", 2, ["c", "</s>"]),
        ("<s> $A </s>", 9, ["<s>", "a", "b", "c", "</s>"]),
    ],
)
def test_the_end_of_a_text_keeps_the_tokens_that_are_added(template, length, tokens):
    backend = byte_backend(("<s>", "</s>"))
    special = [(token, backend.token_to_id(token)) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    ids = Tokenizer(backend).encode_end("abc", length)
    assert [backend.id_to_token(i) for i in ids] == tokens


@pytest.mark.parametrize("length", [1, 7, 50])
def test_the_end_of_a_long_text_is_that_of_its_tokens(smollm2_tokenizer, length):
    text = "The quick brown fox, 12345 times; über  die\n\nBrücke. " * 400
    assert smollm2_tokenizer.encode_end(text, length) == smollm2_tokenizer.encode(text)[-length:]


def test_tokens_as_the_vocabulary_spells_them(byte_tokenizer):
    assert [byte_tokenizer.token(i) for i in (97, 32, 256, 99_999)] == ["a", "Ġ", "<|endoftext|>", ""]


def test_the_byte_vocabulary(byte_tokenizer):
    assert byte_tokenizer.vocab_size == BYTES.vocab_size
    assert byte_tokenizer.special_ids == {256, 257, 258}
    assert byte_tokenizer.encode("<|im_start|>hé\n<|im_end|><|endoftext|>") == [257, 104, 195, 169, 10, 258, 256]
    assert byte_tokenizer.decode([257, 104, 195, 169, 258]) == "hé"
    assert byte_tokenizer.decode([104, 258], skip_special_tokens=False) == "h<|im_end|>"
    assert byte_tokenizer.decode([104, 195]) == "h\ufffd"


@given(st.binary(max_size=40))
def test_bytes_are_their_own_ids(byte_tokenizer, data):
    assert byte_tokenizer.decode(data) == data.decode(errors="replace")


@given(st.text(max_size=40).filter(lambda t: not any("\ud800" <= c <= "\udfff" for c in t)))
def test_any_text_comes_back(byte_tokenizer, text):
    assert byte_tokenizer.decode(byte_tokenizer.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff"])
def test_c07_lone_surrogates_are_a_bad_request(byte_tokenizer, text):
    with pytest.raises(BadRequest, match="lone surrogate") as caught:
        byte_tokenizer.encode(text)
    assert caught.value.message.encode()


def test_ids_outside_of_the_vocabulary_decode_to_nothing(byte_tokenizer):
    assert byte_tokenizer.decode([104, 100_000, 105]) == "hi"


def test_the_byte_alphabet():
    assert len(set(CHARACTERS)) == 256
    assert set(CHARACTERS) == set(pre_tokenizers.ByteLevel.alphabet())
    assert token_bytes("ĠhÃ©") == " hé".encode()
    assert token_bytes("<two words>") == b"<two words>"


def directory_with(tmp_path, backend):
    backend.save(str(tmp_path / "tokenizer.json"))
    return msgspec.structs.replace(BYTES, path=str(tmp_path), format="safetensors")


def test_a_directory(tmp_path, bpe_tokenizer):
    bpe_tokenizer.backend.enable_truncation(3)
    bpe_tokenizer.backend.enable_padding(length=20)
    description = directory_with(tmp_path, bpe_tokenizer.backend)
    bpe_tokenizer.backend.no_truncation()
    bpe_tokenizer.backend.no_padding()
    tokenizer = load_tokenizer(description)
    text = "hello wörld 12 <|im_end|>"
    assert tokenizer.encode(text) == bpe_tokenizer.encode(text)
    assert tokenizer.special_ids == bpe_tokenizer.special_ids
    assert len(tokenizer.encode(text)) > 3


def test_a_directory_without_tokenizer(tmp_path):
    with pytest.raises(ModelError, match=r"has no tokenizer\.json; make one with transformers"):
        load_tokenizer(msgspec.structs.replace(BYTES, path=str(tmp_path), format="safetensors"))


@pytest.mark.parametrize("content", ["", "{}", '{"model": 3}'])
def test_a_damaged_tokenizer(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(msgspec.structs.replace(BYTES, path=str(tmp_path), format="safetensors"))


@settings(deadline=None)
@given(st.data())
def test_no_text_has_fewer_tokens_than_the_longest_token_says(all_tokenizers, data):
    tokenizer = data.draw(st.sampled_from(all_tokenizers))
    text = data.draw(st.text(st.sampled_from("aehlo    world12日本<|im_end|></s>"), max_size=60))
    assert len(tokenizer.encode(text, add_special_tokens=False)) >= len(text.encode()) / tokenizer.longest_token


def test_longest_token(byte_tokenizer, spm_tokenizer):
    assert byte_tokenizer.longest_token == len("<|endoftext|>")
    assert spm_tokenizer.longest_token == len(" hello")


def test_longest_token_where_there_is_none():
    words = Tokenizer(Backend(models.WordLevel({"a": 0, "?": 1}, unk_token="?")))
    assert words.longest_token == sys.maxsize
    lower = Backend(models.BPE({c: i for i, c in enumerate(CHARACTERS)}, []))
    lower.decoder = decoders.ByteLevel()
    lower.normalizer = normalizers.Replace("a", "")
    assert Tokenizer(lower).longest_token >= sys.maxsize
    lower.normalizer = normalizers.NFC()
    assert Tokenizer(lower).longest_token == NFC_SHRINKS


def test_how_much_nfc_can_shrink_a_text():
    characters = [chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i <= 0xDFFF]
    spellings = {*characters, *(unicodedata.normalize("NFD", c) for c in characters)}
    worst = max(len(text.encode()) / len(unicodedata.normalize("NFC", text).encode()) for text in spellings)
    assert 2 < worst <= NFC_SHRINKS


def test_a37_others_run_while_a_long_text_is_encoded():
    """The thread that encodes does not hold the interpreter, however long the text is."""
    tokenizer = Tokenizer(byte_backend())
    assert any(_longest_wait(tokenizer, "quite long " * 100_000) < 0.5 for _ in range(5))


def _longest_wait(tokenizer, text):
    """The longest time for which this thread stood still, as a share of the time that another one took to encode."""
    encoding = threading.Thread(target=tokenizer.encode, args=(text,))
    began = before = time.monotonic()
    longest = 0.0
    encoding.start()
    while encoding.is_alive():
        time.sleep(0.001)
        before, longest = time.monotonic(), max(longest, time.monotonic() - before)
    return longest / (before - began)


def test_the_bytes_of_each_token(byte_tokenizer, spm_tokenizer):
    assert byte_tokenizer.bytes_of(0xE6, skip_special_tokens=True) == b"\xe6"
    assert byte_tokenizer.bytes_of(256, skip_special_tokens=False) == b"<|endoftext|>"
    assert byte_tokenizer.bytes_of(256, skip_special_tokens=True) == b""
    assert byte_tokenizer.bytes_of(10**6, skip_special_tokens=False) == b""
    found = {
        token: spm_tokenizer.bytes_of(spm_tokenizer.backend.token_to_id(token), skip_special_tokens=True)
        for token in ("<0xE6>", "▁hello", "日", "</s>")
    }
    assert found == {"<0xE6>": b"\xe6", "▁hello": b" hello", "日": "日".encode(), "</s>": b""}
    assert spm_tokenizer.bytes_of(spm_tokenizer.vocab_size, skip_special_tokens=False) == b""
    assert spm_tokenizer.bytes_of(2, skip_special_tokens=False) == b"</s>"


def qwen_backend(bpe):
    """As in tokenizer.json of Qwen2 and Qwen3."""
    vocab, merges = bpe
    backend = Backend(models.BPE(vocab=vocab, merges=merges))
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN2), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    return backend


def mistral_backend(_bpe):
    """As in tokenizer.json of Mistral 7B: SentencePiece's BPE without a pre-tokenizer, the start of a text marked."""
    tokens, _, _ = sentencepiece_vocabulary()
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [("l", "l"), ("h", "e"), ("▁", "he"), ("ll", "o"), ("▁he", "llo")]
    backend = Backend(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(SPECIALS)
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return backend


@pytest.mark.parametrize("make", [qwen_backend, mistral_backend])
def test_directories_of_other_families(tmp_path, bpe, make):
    tokenizer = load_tokenizer(directory_with(tmp_path, make(bpe)))
    for text in ("hello hello", "héllo wörld 12 日本 👩", "a   1234\n\nb"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert b"".join(tokenizer.bytes_of(i, skip_special_tokens=True) for i in ids).decode().strip() == text
