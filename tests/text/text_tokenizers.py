"""Tokenizers for the tests of text: byte-level ones with merges, and a SentencePiece one with byte fallback."""

import json

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from actorlm.text.byte_alphabet import CHARACTERS
from actorlm.text.gguf_tokenizer import gguf_backend
from actorlm.text.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox, 2024; it's 12345 don't we'll HELLO hello   there\n\n\tab == c++;",
    "héllo wörld 日本語 テスト 👩‍🚀 naïve Ünïcode ½ ²3 $5.00 <b>x</b> a_b|c ~^`",
    "  leading   spaces 007 \r\n tabs\t\ttabs I'M YOU'RE x'S 10 100 1000 10000",
] * 3


def trained_bpe(size=600):
    """(vocab, merges) of byte-level BPE trained on CORPUS, with merges across words."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(CHARACTERS), show_progress=False)
    backend.train_from_iterator([line[i : i + 9] for line in CORPUS for i in range(0, len(line), 4)], trainer)
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def reference(vocab, merges, pre_tokenizer, **options):
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    return backend


def write_gguf_tokenizer(path, tokens, *, types=None, model="gpt2", pre=None, merges=(), scores=None, **keys):
    """A GGUF file with a tokenizer alone."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types or [1] * len(tokens))
    if merges:
        writer.add_token_merges([" ".join(merge) for merge in merges])
    if scores:
        writer.add_token_scores(scores)
    for key, value in keys.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


SPECIALS = ["<unk>", "<s>", "</s>"]
PIECES = ["▁", "a", "b", "c", "h", "e", "l", "o", "w", "r", "d", ".", "日", "本", "▁a", "ab", "ll", "▁h", "he", "▁he"]
PIECES += ["llo", "▁▁", "▁w", "or", "ld", "orld", "▁world", "abc", "▁▁▁▁", "hello", "▁hello", "日本", "bc"]


def sentencepiece_vocabulary():
    """(tokens, types, scores): specials, 256 byte tokens, characters, and merged pieces of falling score."""
    tokens = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    types = [2, 3, 3, *[6] * 256, *[1] * len(PIECES)]
    merged = [piece for piece in PIECES if len(piece) > 1]
    scores = {piece: -float(rank) for rank, piece in enumerate(merged)}
    return tokens, types, [scores.get(token, 0.0 if i < 259 else -1e6) for i, token in enumerate(tokens)]


def sentencepiece_tokenizer(path, **keys):
    tokens, types, scores = sentencepiece_vocabulary()
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return Tokenizer(
        gguf_backend(write_gguf_tokenizer(path, tokens, types=types, model="llama", scores=scores, **ids, **keys))
    )
