"""What each field of a request does: every field of OpenAI's reference, and the extras that we take.

USED fields change the answer as documented, or are refused with a reason. IGNORED ones are accepted without effect,
because SDKs send them and they ask for nothing that shows in the answer. NEUTRAL ones are accepted only at the values
that ask for nothing that we lack. REFUSED ones are accepted only as null. Any other field is refused by name.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class Treatment(StrEnum):
    """How a field is treated."""

    USED = "used"
    IGNORED = "accepted without effect"
    NEUTRAL = "accepted at its neutral value"
    REFUSED = "refused"


class Field(msgspec.Struct, frozen=True):
    """A field's treatment, and what it does or why it is not done."""

    treatment: Treatment
    note: str


def _used(note: str) -> Field:
    return Field(Treatment.USED, note)


def _ignored(note: str) -> Field:
    return Field(Treatment.IGNORED, note)


def _neutral(note: str) -> Field:
    return Field(Treatment.NEUTRAL, note)


def _refused(note: str) -> Field:
    return Field(Treatment.REFUSED, note)


_COMMON = {
    "model": _used("the served name; any other is 404 model_not_found"),
    "n": _used("choices for each prompt, default 1; n times the prompts may not exceed the server's max_choices"),
    "temperature": _used("0 to 2, default: the model's or 1; 0 always takes the best token"),
    "top_p": _used("above 0, at most 1, default: the model's or 1"),
    "top_k": _used("extra; 0 or -1 is off; default: the model's or off"),
    "min_p": _used("extra; 0 to 1, default: the model's or 0"),
    "seed": _used("64 bits; drawn if absent; each choice after the first of a prompt has its own, derived from it"),
    "min_tokens": _used("extra; no end before so many tokens"),
    "stop": _used("a string or a list of up to 64, each of 1 to 1024 characters"),
    "stop_token_ids": _used("extra; token ids that end a choice, at most 128"),
    "logit_bias": _used("token id to bias, -100 to 100, at most 1024"),
    "ignore_eos": _used("extra; the model's end tokens do not end a choice"),
    "skip_special_tokens": _used("extra; default true"),
    "spaces_between_special_tokens": _used(
        "extra; default true; false joins special tokens that are shown, where the model's tokenizer would put spaces"
    ),
    "include_stop_str_in_output": _used("extra; the stop string or stop token that ended a choice stays in its text"),
    "stream": _used("server-sent events"),
    "stream_options": _used(
        "include_usage, and with it continuous_usage_stats (usage so far in every event); only with stream;"
        " include_obfuscation is accepted without effect"
    ),
    "presence_penalty": _used("-2 to 2, default 0; subtracted once from tokens that the output has already"),
    "frequency_penalty": _used("-2 to 2, default 0; subtracted for each time that the output has the token already"),
    "repetition_penalty": _used(
        "extra; 0.01 to 100, default: the model's or 1; divides the positive logits of tokens in prompt or output,"
        " multiplies others"
    ),
    "bad_words": _used("extra; up to 128 texts that the output never contains, at its beginning or after a space"),
    "logprob_token_ids": _used("extra; up to 128 token ids to list beside the most probable ones; only with logprobs"),
    "allowed_token_ids": _used("extra; the only token ids that the output may contain; default: all"),
    "return_token_ids": _used("extra; the answer has prompt_token_ids and each choice's token_ids, streamed or not"),
    "truncate_prompt_tokens": _used(
        "extra; keeps so many tokens of the prompt, the last ones; -1: as many as leave room for the output asked for"
    ),
    "add_special_tokens": _used(
        "extra; whether the tokenizer adds its special tokens to text; default: true for prompts, false for messages,"
        " whose template writes them"
    ),
    "cache_salt": _used("extra; up to 1024 characters; only requests with the same salt share cached prefixes"),
    "priority": _used(
        "extra; -1000 to 1000, default 0; lower goes first, with --scheduling-policy priority; else only 0 is accepted"
    ),
    "user": _ignored("nothing is kept about users"),
}

CHAT: Mapping[str, Field] = _COMMON | {
    "messages": _used("roles system, developer, user, assistant and tool; text or text parts"),
    "add_generation_prompt": _used("extra; the prompt ends where the assistant begins to speak; default true"),
    "continue_final_message": _used("extra; the prompt ends with the content of the last message, which is continued"),
    "chat_template_kwargs": _used(
        "extra; variables of the model's chat template; those that it does not mention are left out, reserved names"
        " refused"
    ),
    "documents": _used("extra; up to 1024 objects of texts for a chat template that shows documents"),
    "max_tokens": _used("the older name of max_completion_tokens"),
    "max_completion_tokens": _used("default: up to the context; a larger value than the room left is cut to it"),
    "tools": _neutral("tool calls are not implemented, so tools are accepted only with tool_choice none"),
    "tool_choice": _neutral("tool calls are not implemented, so only none, and auto without tools, are accepted"),
    "response_format": _neutral('constrained output is not implemented, so only {"type": "text"} is accepted'),
    "logprobs": _used("log-probabilities of all generated tokens, before temperature, penalties and the like"),
    "top_logprobs": _used("0 to 20 most probable tokens in each place; only with logprobs"),
    "modalities": _neutral("this server makes text, so only text is accepted"),
    "function_call": _neutral("functions cannot be called, so only none and auto are accepted"),
    "service_tier": _neutral("there is one tier, so only auto and default are accepted"),
    "reasoning_effort": _ignored("the model's template decides"),
    "verbosity": _ignored("the model decides"),
    "parallel_tool_calls": _ignored("there are no tool calls to make in parallel"),
    "store": _ignored("nothing is stored"),
    "metadata": _ignored("nothing is stored that it could be attached to"),
    "safety_identifier": _ignored("nothing is kept about users"),
    "prompt_cache_key": _ignored("the prefix cache finds equal prefixes by itself"),
    "prompt_cache_retention": _ignored("the prefix cache keeps what it has room for"),
    "prompt_cache_options": _ignored("the prefix cache keeps what it has room for"),
    "audio": _refused("this server makes text; leave it out"),
    "functions": _refused("replaced by tools, and tool calls are not implemented; leave it out"),
    "moderation": _refused("there is no moderation model; leave it out"),
    "prediction": _refused("predicted outputs are not implemented; leave it out"),
    "web_search_options": _refused("this server never fetches anything; leave it out"),
}

COMPLETION: Mapping[str, Field] = _COMMON | {
    "prompt": _used("a text, texts, token ids, or lists of token ids; no mixtures"),
    "max_tokens": _used("default 16; a larger value than the room left is cut to it; 0 only with echo"),
    "echo": _used("the prompt's text comes before the generated text, its log-probabilities before the generated ones"),
    "best_of": _neutral("choices are not ranked, so only 1 is accepted"),
    "suffix": _neutral("text is not filled in before a suffix, so only an empty one is accepted"),
    "logprobs": _used("0 to 20 most probable tokens in each place, the prompt's places too with echo"),
}

_TOKENIZED = {
    "model": _used("optional; the served name; any other is 404 model_not_found"),
}

TOKENIZE: Mapping[str, Field] = _TOKENIZED | {
    "prompt": _used("a text; this or messages"),
    "messages": _used("a conversation, as in chat; this or prompt"),
    "add_special_tokens": _used("as in chat and completions"),
    "return_token_strs": _used("the answer has token_strs, each token as the vocabulary spells it"),
    "add_generation_prompt": _used("as in chat; only with messages"),
    "continue_final_message": _used("as in chat; only with messages"),
    "chat_template_kwargs": _used("as in chat; only with messages"),
    "documents": _used("as in chat; only with messages"),
}

DETOKENIZE: Mapping[str, Field] = _TOKENIZED | {
    "tokens": _used("token ids; the answer's prompt is their text, special tokens included"),
}


def limitation(name: str) -> str | None:
    """Why a field is not taken at any value, if it is not."""
    field = CHAT.get(name) or COMPLETION.get(name)
    limited = (Treatment.NEUTRAL, Treatment.REFUSED)
    return field.note if field is not None and field.treatment in limited else None


def without_effect(request: msgspec.Struct, table: Mapping[str, Field]) -> list[str]:
    """The fields of `request` that are set and have no effect."""
    ignored = (name for name, field in table.items() if field.treatment is Treatment.IGNORED)
    return [name for name in ignored if getattr(request, name) is not None]
