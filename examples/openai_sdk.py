"""Asks a running tree (`actorlm up`) with OpenAI's SDK: an answer as it comes, then several choices at once.

Takes the server's URL: `python examples/openai_sdk.py http://127.0.0.1:8000`, which is also the default.
"""

import sys

from openai import OpenAI


def main(url: str = "http://127.0.0.1:8000") -> None:
    """Prints what the model says."""
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id

        question = "Write a haiku about the sea."
        chunks = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], max_completion_tokens=50, stream=True
        )
        for chunk in chunks:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()

        answer = client.completions.create(model=model, prompt="The capital of France is", n=3, seed=1, max_tokens=8)
        for choice in answer.choices:
            print(f"{choice.index}: {choice.text!r} ({choice.finish_reason})")
        if answer.usage is not None:
            print(f"{answer.usage.prompt_tokens} + {answer.usage.completion_tokens} tokens")


if __name__ == "__main__":
    main(*sys.argv[1:2])
