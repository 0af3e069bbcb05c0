"""The KV blocks of one replica: who refers to them, and which hold contents worth finding again.

A block is in use (requests refer to it), idle (nobody does, but it is named, so its contents can be found again) or
blank. Taking blocks uses up blank ones first, then forgets idle ones, least recently used first. Knows neither requests
nor hashes: a name is any bytes that stand for the block's contents.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from actorlm.config import BLOCK_SIZE


def blocks_for(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK_SIZE)


class BlockPool:
    """Reference-counted blocks, numbered from 0 to `num_blocks` - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._by_name: dict[bytes, int] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be taken: blank and idle ones."""
        return len(self._blank) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Blocks that somebody refers to."""
        return self.num_blocks - self.num_free

    def count_idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are idle: sharing them makes so many fewer free."""
        return sum(block in self._idle for block in blocks)

    def take(self, count: int) -> list[int]:
        """Blocks with no contents and one reference each. The caller has looked at `num_free`."""
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._forget(block)
        self._references[block] = 1
        return block

    def _forget(self, block: int) -> None:
        name = self._names[block]
        assert name is not None, f"idle block {block} has no name"
        del self._by_name[name]
        self._names[block] = None

    def share(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each of these blocks, which are in use or idle."""
        for block in blocks:
            if self._references[block] == 0:
                del self._idle[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drops a reference to each. The last blocks are the first to be forgotten: a prefix outlives what follows."""
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} is released once too often"
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._names[block] is None:
                self._blank.append(block)
            else:
                self._idle[block] = None

    def name(self, block: int, name: bytes) -> None:
        """Lets the contents of a block in use be found by name, unless another block has them already."""
        assert self._references[block] > 0, f"block {block} is named and nobody uses it"
        assert self._names[block] is None, f"block {block} has a name already"
        if name not in self._by_name:
            self._names[block] = name
            self._by_name[name] = block

    def find(self, name: bytes) -> int | None:
        """The block, in use or idle, with these contents."""
        return self._by_name.get(name)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Proves that `tables`, the block tables of all requests, account for every reference and nothing is lost."""
        counted = Counter(block for table in tables for block in table)
        blank, idle = set(self._blank), set(self._idle)
        assert len(blank) == len(self._blank), "a block is blank twice"
        for block, references in enumerate(self._references):
            assert references == counted[block], f"block {block}: {references} references, {counted[block]} users"
            free = (block in blank) + (block in idle)
            assert free == (references == 0), f"block {block}: {references} references, on {free} free lists"
            assert block not in blank or self._names[block] is None, f"blank block {block} has a name"
            assert block not in idle or self._names[block] is not None, f"idle block {block} has no name"
        named = {name: block for block, name in enumerate(self._names) if name is not None}
        assert named == self._by_name, "names and blocks disagree"
