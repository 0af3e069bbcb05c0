"""Asks a running tree (`actorlm up`) over ZeroMQ, without HTTP: one answer as it comes, many at once, one left early.

Takes the tree's run directory, as `actorlm ps` shows it; without it the only running tree is asked.
"""

import asyncio
import sys

from actorlm import Client, SamplingParams


async def stream(client: Client) -> None:
    """Prints a conversation's answer as it comes, and what it came to."""
    answer = client.chat([{"role": "user", "content": "Write a haiku about the sea."}], max_tokens=50)
    async for delta in answer:
        print(delta.text, end="", flush=True)
    print(f"\n{answer.usage}")


async def length(client: Client, prompt: str) -> int:
    """The number of tokens that continue a prompt."""
    params = SamplingParams(max_tokens=20, temperature=0.7, seed=1)
    return sum([delta.tokens async for delta in client.generate(prompt, params)])


async def main(where: str | None) -> None:
    """All of it on one connection."""
    async with Client(where) as client:
        print(f"connected to a tree that serves {client.model}")
        await stream(client)
        lengths = await asyncio.gather(*(length(client, f"The number {number} is") for number in range(100)))
        print(f"100 requests made {sum(lengths)} tokens")
        async for delta in client.generate("Once upon a time", max_tokens=1000, ignore_eos=True):
            print(f"left after {delta.text!r}: the server stops, too")
            break


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
