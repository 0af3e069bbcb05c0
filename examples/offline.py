"""Continues texts and answers a chat in this process: `python examples/offline.py [MODEL]`."""

import sys
from typing import Any

from actorlm import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Water boils at"]
MESSAGES = [{"role": "user", "content": "Name three colours."}]


def main(model: str | None = None, **options: Any) -> None:
    """Prints what the model says."""
    with LLM(model, **options) as llm:
        for output in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=12)):
            print(repr(output.prompt), "->", repr(output.outputs[0].text))

        params = SamplingParams(n=3, seed=1, temperature=0.8, max_tokens=24, stop=["\n"])
        (answer,) = llm.chat(MESSAGES, params)
        for choice in answer.outputs:
            print(f"{choice.index}: {choice.text!r} ({choice.finish_reason})")


if __name__ == "__main__":
    main(*sys.argv[1:2])
