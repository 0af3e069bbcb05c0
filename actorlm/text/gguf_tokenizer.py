"""A `tokenizers.Tokenizer` from the `tokenizer.ggml.*` metadata of a GGUF file, equal to llama.cpp's.

Two vocabularies: `gpt2` is byte-level BPE, whose pre-tokenizer `tokenizer.ggml.pre` names (transformers 5.24 ignores
`smollm` and so tokenizes "a   12" wrongly); `llama` is SentencePiece's BPE, whose merges follow from its scores.
Other kinds are refused by name.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from actorlm.checkpoint.gguf import GgufFile
from actorlm.checkpoint.typed_json import convert
from actorlm.errors import ModelError

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Values of `token_type`."""

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _CL100K % r"\p{N}{1,3}"
QWEN2 = _CL100K % r"\p{N}"


TokenId = Annotated[int, msgspec.Meta(ge=0)]


class PreTokenizer(msgspec.Struct, frozen=True):
    """Regular expressions that cut the text one after the other, and what else the name implies."""

    splits: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_LLAMA3 = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
PRE_TOKENIZERS = {
    "smollm": PreTokenizer((r"\p{N}", GPT2)),
    "gpt-2": PreTokenizer((GPT2,)),
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    # llama.cpp leaves out NFC; the model's own tokenizer has it. They differ on decomposed text alone.
    "qwen2": PreTokenizer((QWEN2,), nfc=True),
}


class _Vocabulary(msgspec.Struct, frozen=True):
    """The keys `tokenizer.ggml.*`, named as they are in the file."""

    model: str
    tokens: list[str]
    token_type: list[int] = []
    merges: list[str] = []
    scores: list[float] = []
    pre: str = "default"
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool = False
    add_space_prefix: bool = True

    def of_type(self, *types: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.token_type, strict=False) if kind in types]


def gguf_backend(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer in a GGUF file. Raises ModelError if it is missing, damaged, or of a kind that is not supported."""
    with GgufFile(path) as file:
        vocabulary = convert(file.section("tokenizer.ggml."), _Vocabulary, f"{path}, tokenizer.ggml.*")
    try:
        backend, add_bos = _backend(vocabulary, path)
        _add_tokens(backend, vocabulary)
        _add_ends(
            backend, vocabulary, add_bos=add_bos if vocabulary.add_bos_token is None else vocabulary.add_bos_token
        )
    except ModelError:
        raise
    except Exception as error:  # tokenizers raises nothing more precise than Exception
        raise ModelError(f"the tokenizer in {path} is damaged: {error}") from error
    return backend


def _backend(vocabulary: _Vocabulary, path: Path) -> tuple[tokenizers.Tokenizer, bool]:
    match vocabulary.model:
        case "gpt2":
            if vocabulary.pre not in PRE_TOKENIZERS:
                raise ModelError(
                    f"{path} needs the pre-tokenizer {vocabulary.pre} (tokenizer.ggml.pre), which is not supported; "
                    f"supported: {', '.join(PRE_TOKENIZERS)}"
                )
            pre = PRE_TOKENIZERS[vocabulary.pre]
            return _byte_level(vocabulary, pre), pre.add_bos
        case "llama":
            return _sentencepiece(vocabulary), True
        case other:
            raise ModelError(
                f"{path} has a tokenizer of the kind {other}, which is not supported; supported: gpt2, llama"
            )


def _byte_level(vocabulary: _Vocabulary, pre: PreTokenizer) -> tokenizers.Tokenizer:
    vocab = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges = [_pair(merge) for merge in vocabulary.merges]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    splits = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in pre.splits]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    backend.decoder = decoders.ByteLevel()
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _sentencepiece(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    vocab = {token: index for index, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.of_type(UNKNOWN)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges(vocab, vocabulary.scores),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    # llama.cpp puts a space before the text and after every special token, as this normalizer does.
    prefix = [normalizers.Prepend("▁")] if vocabulary.add_space_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if vocabulary.add_space_prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def _merges(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece merges whichever neighbours give the token of the best score: all its pairs, best score first."""
    ranked = [
        (-score, token[:cut], token[cut:])
        for (token, _), score in zip(vocab.items(), scores, strict=True)
        for cut in range(1, len(token))
        if token[:cut] in vocab and token[cut:] in vocab
    ]
    ranked.sort(key=lambda merge: merge[0])
    return [(left, right) for _, left, right in ranked]


def _add_tokens(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary) -> None:
    """Makes control tokens special, and user-defined ones whole wherever they occur."""
    control = vocabulary.of_type(UNKNOWN, CONTROL)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    backend.add_tokens([AddedToken(token, normalized=False) for token in vocabulary.of_type(USER_DEFINED)])


def _add_ends(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary, *, add_bos: bool) -> None:
    """Puts the tokens of beginning and end around a text, if the file asks for them."""
    begin = [vocabulary.bos_token_id] if add_bos and vocabulary.bos_token_id is not None else []
    end = [vocabulary.eos_token_id] if vocabulary.add_eos_token and vocabulary.eos_token_id is not None else []
    if not begin and not end:
        return
    tokens = [(vocabulary.tokens[index], index) for index in dict.fromkeys([*begin, *end])]
    names = [[vocabulary.tokens[index] for index in ids] for ids in (begin, end)]
    backend.post_processor = processors.TemplateProcessing(single=[*names[0], "$A", *names[1]], special_tokens=tokens)
