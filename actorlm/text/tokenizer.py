"""Text to token ids and back: a thin class over `tokenizers.Tokenizer`, and where a model's tokenizer comes from.

Sources: tokenizer.json of a directory, the metadata of a GGUF file (text/gguf_tokenizer.py), and the built-in byte
vocabulary. Texts are encoded as batches of one: for a batch `tokenizers` releases the GIL, so that a caller may encode
large texts in a thread, and for a single text it does not.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from actorlm.checkpoint.description import ModelDescription
from actorlm.errors import BadRequest, ModelError
from actorlm.text.byte_alphabet import CHARACTERS, token_bytes
from actorlm.text.gguf_tokenizer import gguf_backend

NFC_SHRINKS = 4
"""NFC makes no text shorter than a third (the sign U+212A becomes a K, Hangul composes); with a margin."""


class TokenBytes(dict[int, bytes]):
    """The bytes of each token of a byte-level tokenizer, looked up as they occur; skipped and unknown ids have none."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: frozenset[int]) -> None:
        super().__init__()
        self._backend = backend
        self._skipped = skipped

    def __missing__(self, token_id: int) -> bytes:
        token = None if token_id in self._skipped else self._backend.id_to_token(token_id)
        self[token_id] = data = token_bytes(token) if token is not None else b""
        return data


class Tokenizer:
    """The tokenizer of one model. `backend` is the `tokenizers.Tokenizer`; immutable, and safe to use from threads."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.added_tokens = {i: token.content for i, token in added.items()}
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._token_bytes = TokenBytes(backend, frozenset()), TokenBytes(backend, self.special_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; special tokens written out in it count as such. Raises BadRequest for lone surrogates."""
        try:
            (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError:
            raise BadRequest("the text holds a lone surrogate, which has no UTF-8 form") from None
        return list(encoding.ids)

    def encode_end(self, text: str, length: int, add_special_tokens: bool = True) -> list[int]:
        """At most `length` ids: the last of the text's own, between the special tokens that are added.

        Only as much of a long text is looked at as so many tokens can stand for.
        """
        if self.longest_token <= sys.maxsize // (2 * length + 2):
            text = text[-2 * length * self.longest_token :]
        whole = self.encode(text, add_special_tokens)
        if len(whole) <= length:
            return whole
        own = self.encode(text, add_special_tokens=False)
        added, kept = len(whole) - len(own), len(own) - max(length - (len(whole) - len(own)), 0)
        before = next((at for at in range(added) if whole[at : at + len(own)] == own), added)
        return (whole[:before] + own[kept:] + whole[before + len(own) :])[-length:]

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it; empty for an id that it does not have."""
        return self.backend.id_to_token(token_id) or ""

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids. Bytes that are no UTF-8 become U+FFFD, ids outside of the vocabulary nothing."""
        return str(self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_bytes(self, *, skip_special_tokens: bool) -> TokenBytes:
        """The bytes by token id, of a byte-level tokenizer. Shared by all streams."""
        return self._token_bytes[skip_special_tokens]

    def bytes_of(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        """The bytes that one token stands for; none for an unknown id, or a special token that is skipped.

        A tokenizer that is not byte-level may drop a space at the beginning of a text; it is kept here.
        """
        if self.is_byte_level:
            return self.token_bytes(skip_special_tokens=skip_special_tokens)[token_id]
        token = self.backend.id_to_token(token_id)
        if token is None or (skip_special_tokens and token_id in self.special_ids):
            return b""
        if self.has_byte_fallback and is_byte_token(token):
            return bytes([int(token[3:5], 16)])
        return token.replace("▁", " ").encode()

    @property
    def is_byte_level(self) -> bool:
        """Whether a token's text is a sequence of bytes in the byte alphabet, as in GPT-2, Llama 3 and Qwen."""
        return isinstance(self.backend.decoder, decoders.ByteLevel)

    @property
    def has_byte_fallback(self) -> bool:
        """Whether what the vocabulary lacks becomes tokens of one byte each, <0x00> to <0xFF>, as in Llama 2."""
        return bool(getattr(self.backend.model, "byte_fallback", False))

    @cached_property
    def longest_token(self) -> int:
        """An upper bound of the UTF-8 bytes that one token can stand for; sys.maxsize where there is none.

        A text of n bytes has at least n / longest_token tokens, which refuses hopeless texts without tokenizing them.
        """
        added = max((len(t.content.encode()) for t in self.backend.get_added_tokens_decoder().values()), default=1)
        tokens = self.backend.get_vocab(with_added_tokens=False)
        if self.is_byte_level:
            return max(added, max(map(len, tokens), default=1)) * self._shrinkage
        if self.has_byte_fallback:
            return max([added, *(len(token.replace("▁", " ").encode()) for token in tokens)])
        return sys.maxsize  # an unknown-token stands for any length

    @property
    def _shrinkage(self) -> int:
        if self.backend.normalizer is None:
            return 1
        return NFC_SHRINKS if isinstance(self.backend.normalizer, normalizers.NFC) else sys.maxsize


def is_byte_token(token: str) -> bool:
    """Whether this is how a vocabulary with byte fallback writes a byte: <0x00> to <0xFF>."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def load_tokenizer(description: ModelDescription) -> Tokenizer:
    """The tokenizer of a model. Raises ModelError if it is missing, damaged, or of a kind that is not supported."""
    match description.format:
        case "bytes":
            return Tokenizer(byte_backend())
        case "gguf":
            return Tokenizer(gguf_backend(Path(description.path)))
        case "safetensors":
            return Tokenizer(_directory_backend(Path(description.path)))


def _directory_backend(directory: Path) -> tokenizers.Tokenizer:
    path = directory / "tokenizer.json"
    if not path.exists():
        raise ModelError(
            f"{directory} has no tokenizer.json; make one with transformers: "
            "AutoTokenizer.from_pretrained(directory).save_pretrained(directory)"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing more precise than Exception
        raise ModelError(f"{path} is damaged or too new for tokenizers {tokenizers.__version__}: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def byte_backend(specials: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")) -> tokenizers.Tokenizer:
    """The byte vocabulary: ids 0 to 255 are bytes, then come the special tokens; no merges."""
    vocab = {character: byte for byte, character in enumerate(CHARACTERS)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return backend
