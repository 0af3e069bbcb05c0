"""The JSON shapes of `/tokenize` and `/detokenize`, which are vLLM's."""

from typing import Any

import msgspec

from actorlm.api.schema_chat import Documents, Messages


class TokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A text (`prompt`) or a conversation (`messages`), one of them; `fields.py` tells what each field does."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Documents | None = None


class Tokenized(msgspec.Struct, frozen=True):
    """Token ids, and how many a sequence may have at most. `token_strs` is null unless asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Token ids."""

    model: str | None = None
    tokens: list[int]


class Detokenized(msgspec.Struct, frozen=True):
    """The text of token ids, special tokens included."""

    prompt: str
