"""actorlm serves large language models; every part of it is an actor.

Import cost matters here: every process of a tree imports this package, so it imports nothing. What it offers is
imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actorlm.client import Client as Client
    from actorlm.llm import LLM as LLM
    from actorlm.offline.logprobs import Logprob as Logprob
    from actorlm.offline.outputs import CompletionOutput as CompletionOutput
    from actorlm.offline.outputs import RequestOutput as RequestOutput
    from actorlm.params import SamplingParams as SamplingParams

__version__ = "0.1.0"

_OFFERED = {
    "Client": "actorlm.client",
    "LLM": "actorlm.llm",
    "Logprob": "actorlm.offline.logprobs",
    "CompletionOutput": "actorlm.offline.outputs",
    "RequestOutput": "actorlm.offline.outputs",
    "SamplingParams": "actorlm.params",
}


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OFFERED[name]), name)


def __dir__() -> list[str]:
    return ["__version__", *_OFFERED]
