"""`LLM`: a model in the caller's process, used by plain calls. No socket, no event loop, no other process.

    with LLM("smollm2-135m") as llm:
        for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=64)):
            print(output.outputs[0].text)

The same scheduler and the same worker as a tree's, so the same tokens for the same parameters and seeds.
"""

import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import count
from types import TracebackType
from typing import Any, Self

from actorlm.errors import BadRequest, ConfigError
from actorlm.offline.batch import Job
from actorlm.offline.options import offline_config
from actorlm.offline.outputs import CompletionOutput, RequestOutput
from actorlm.offline.progress import Bar
from actorlm.offline.prompts import Prompt, Prompted, conversations, prompt_list, prompt_seeds, typed_messages
from actorlm.offline.session import load
from actorlm.params import SamplingParams, checked
from actorlm.planning import kernels, lacks_kernels
from actorlm.sampling import MAX_SEED, MIN_SEED
from actorlm.screen import Screen

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """A loaded model. `model` is what `actorlm up` takes too; without one, it is the default model.

    `options` are `actorlm up`'s that concern one replica, such as `dtype`, `max_model_len`, `kv_cache_tokens` or
    `max_num_seqs`. With `seed`, prompts whose parameters have none get one that follows from it and from how many
    prompts came before; without, it is drawn. One call at a time. Raises ConfigError, ModelError or InsufficientMemory.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, *, seed: int | None = None, **options: Any) -> None:
        config = offline_config(None if model is None else os.fspath(model), options)
        if seed is not None and not (isinstance(seed, int) and MIN_SEED <= seed <= MAX_SEED):
            raise ConfigError(
                f"seed is {seed}; it must be an integer of 64 bits, {MIN_SEED} to {MAX_SEED}", param="seed"
            )
        self._count = count()
        self._session = load(config, Screen())
        if seed is None and config.parallel.executor == "external":
            seed = self._session.agreed("seed", secrets.randbits(63))
        self._seed_of = prompt_seeds(seed)
        if lacks_kernels(config):
            warnings.warn(f"this LLM computes with {kernels(self._session.config)}", RuntimeWarning, stacklevel=2)

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: Params = None, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        """Continues texts; returns one output a prompt, in their order.

        A prompt is a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}. `params` are for all,
        or one for each. `use_tqdm` shows a bar where standard error is a terminal. Raises BadRequest before anything
        runs, ContextLengthExceeded for a prompt that cannot fit. Ctrl-C aborts what runs; the LLM stays usable.
        """
        preparation = self._session.preparation
        prompted = [preparation.prompted(prompt, f"prompts[{i}]") for i, prompt in enumerate(prompt_list(prompts))]
        return self._run(self._jobs(prompted, params, "prompts"), use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        params: Params = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers conversations, one or several, rendered by the model's chat template; otherwise like `generate`.

        A conversation is a list of messages with `role` and `content`. `chat_template_kwargs` are further variables of
        the template, of which it sees those that it mentions; the model's answer to `tools` is text, as it comes.
        """
        preparation = self._session.preparation
        options = {
            "add_generation_prompt": add_generation_prompt, "tools": tools, "variables": chat_template_kwargs
        }  # fmt: skip
        prompted = [
            preparation.rendered(typed_messages(conversation, f"messages[{i}]"), f"messages[{i}]", **options)
            for i, conversation in enumerate(conversations(messages))
        ]
        return self._run(self._jobs(prompted, params, "messages"), use_tqdm)

    def close(self) -> None:
        """Frees the weights and the KV cache. A closed LLM refuses every call. Idempotent."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _jobs(self, prompted: Sequence[Prompted], params: Params, name: str) -> list[Job]:
        chosen = _one_each(params, len(prompted), name)
        return [self._job(index, one, chosen[index], f"{name}[{index}]") for index, one in enumerate(prompted)]

    def _job(self, index: int, prompted: Prompted, params: SamplingParams, where: str) -> Job:
        number = next(self._count)
        seed = self._seed_of(number)
        return self._session.preparation.job(index, str(number), prompted, params, seed=seed, where=where)

    def _run(self, jobs: Sequence[Job], use_tqdm: bool) -> list[RequestOutput]:
        outputs: dict[int, RequestOutput] = {}
        generated = 0
        with closing(self._session.run(jobs)) as steps, Bar(len(jobs), wanted=use_tqdm) as bar:
            for tokens, complete in steps:
                outputs |= {job.index: output for job, output in complete}
                generated += tokens
                bar.update(len(outputs), generated)
        return [outputs[index] for index in range(len(jobs))]


def _one_each(params: Params, prompts: int, name: str) -> list[SamplingParams]:
    if params is None:
        return [SamplingParams()] * prompts
    if isinstance(params, Sequence):
        if len(params) != prompts:
            raise BadRequest(f"there are {len(params)} params and {prompts} {name}; give one for all, or one for each")
        return [checked(one, f"params[{index}]") for index, one in enumerate(params)]
    return [checked(params, "params")] * prompts
