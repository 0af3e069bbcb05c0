"""The prefix cache: finds the KV blocks of a prompt's beginning if an earlier request has computed them.

A block's name is SHA-256(name of the block before it, its 16 token ids); before the first block stands the hash of the
tenant's salt, so tenants with different salts never share. Names are compared in full. A block is offered when all its
tokens are known and the step that computes them is being planned: whoever shares it is computed in the same step or a
later one, and in each layer a step writes all its keys and values before any are read. A hit always leaves at least one
token to compute, whose logits are needed.
"""

from hashlib import sha256

from actorlm.config import BLOCK_SIZE
from actorlm.scheduling.blocks import BlockPool
from actorlm.scheduling.request import Request


class PrefixCache:
    """Names the blocks of a pool. `queries` and `hits` count tokens of requests on their first way into a slot."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.queries = 0
        self.hits = 0

    def match(self, request: Request) -> list[int]:
        """The longest run of cached blocks that begins the request. They are not yet shared."""
        blocks: list[int] = []
        for index in range((len(request.token_ids) - 1) // BLOCK_SIZE):
            block = self._pool.find(_block_hash(request, index))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def offer(self, request: Request, tokens: int) -> None:
        """Lets others find the blocks that the request's first `tokens` tokens fill, which are known."""
        for index in range(request.num_shareable, tokens // BLOCK_SIZE):
            self._pool.name(request.blocks[index], _block_hash(request, index))
            request.num_shareable += 1


def _block_hash(request: Request, index: int) -> bytes:
    """The name of a full block; those before it have been asked for."""
    hashes = request.block_hashes
    if index == len(hashes):
        parent = hashes[-1] if hashes else _root(request.cache_salt)
        tokens = request.token_ids[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
        hashes.append(sha256(parent + tokens.tobytes()).digest())
    return hashes[index]


def _root(salt: str) -> bytes:
    return sha256(b"actorlm prefix cache\0" + salt.encode()).digest()
