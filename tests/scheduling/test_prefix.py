from hashlib import sha256

import pytest
from scheduling_replica import generate

from actorlm.scheduling.blocks import BlockPool, blocks_for
from actorlm.scheduling.prefix import PrefixCache
from actorlm.scheduling.request import Request
from actorlm.wire import int32


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(16)


@pytest.fixture
def cache(pool) -> PrefixCache:
    return PrefixCache(pool)


def request_of(tokens, salt="") -> Request:
    return Request.from_generate(generate(1, tokens, salt=salt))


@pytest.fixture
def computed(pool, cache):
    """Offers the blocks of a sequence of which so many tokens are computed; returns the blocks."""

    def compute(tokens, count=None, salt="") -> list[int]:
        request = request_of(tokens, salt)
        request.blocks = pool.take(blocks_for(len(tokens)))
        request.num_computed = len(tokens) if count is None else count
        cache.offer(request, request.num_computed)
        return request.blocks

    return compute


def test_a_prefix_is_found_block_by_block(cache, computed):
    blocks = computed(range(48))
    assert cache.match(request_of([*range(40), 7, 7, 7, 7, 7, 7, 7, 7, 7])) == blocks[:2]
    assert cache.match(request_of(range(64))) == blocks
    assert cache.match(request_of([1, *range(47)])) == []


def test_a_hit_leaves_one_token_to_compute(cache, computed):
    blocks = computed(range(48))
    assert cache.match(request_of(range(48))) == blocks[:2]
    assert cache.match(request_of(range(49))) == blocks
    assert cache.match(request_of(range(16))) == []
    assert cache.match(request_of([3])) == []


def test_only_computed_blocks_are_offered(cache, computed):
    blocks = computed(range(48), count=31)
    assert cache.match(request_of(range(64))) == blocks[:1]


def test_blocks_are_offered_as_they_fill(pool, cache):
    request = request_of(range(40))
    request.blocks = pool.take(3)
    found = []
    for request.num_computed in (10, 16, 31, 40):
        cache.offer(request, request.num_computed)
        found.append(len(cache.match(request_of(range(64)))))
    assert found == [0, 1, 1, 2]


def test_tenants_with_different_salts_do_not_share(cache, computed):
    blocks = computed(range(32), salt="a")
    assert cache.match(request_of(range(64), salt="b")) == []
    assert cache.match(request_of(range(64))) == []
    assert cache.match(request_of(range(64), salt="a")) == blocks


def test_the_same_block_behind_another_is_another(cache, computed):
    computed([*range(16), *range(16)])
    assert len(cache.match(request_of([*range(16), *range(16), 1]))) == 2
    assert len(cache.match(request_of([*range(16), *range(1, 17), 1]))) == 1


def test_names_are_chained_sha256(pool, computed):
    block, second = computed(range(32), salt="s")
    first_name = sha256(sha256(b"actorlm prefix cache\0s").digest() + int32(range(16))).digest()
    assert pool.find(first_name) == block
    assert pool.find(sha256(first_name + int32(range(16, 32))).digest()) == second


def test_equal_blocks_computed_twice_are_found_once(pool, cache, computed):
    first, second = computed(range(32)), computed(range(32))
    assert cache.match(request_of(range(64))) == first
    pool.release(first)
    pool.release(second)
    pool.check([])


def test_nothing_is_found_behind_a_forgotten_block(pool, cache, computed):
    blocks = computed(range(32))
    pool.release(blocks[:1])
    pool.take(15)
    assert cache.match(request_of(range(64))) == []


def test_a_forgotten_block_is_not_found(pool, cache, computed):
    pool.release(computed(range(32)))
    pool.take(15)
    assert len(cache.match(request_of(range(64)))) == 1
    pool.take(1)
    assert cache.match(request_of(range(64))) == []
