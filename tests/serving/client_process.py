"""A client in a process of its own, for a test to kill: an address, and so many endless requests."""

import asyncio
import sys

from actorlm import Client

SEED = 1


async def _read(client, number):
    async for _ in client.generate([number], seed=SEED, max_tokens=4000, ignore_eos=True):
        pass


async def main(address, count):
    async with Client(address) as client:
        tasks = [asyncio.create_task(_read(client, number)) for number in range(count)]
        await asyncio.sleep(0.1)
        print("asked", flush=True)
        await asyncio.gather(*tasks)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
