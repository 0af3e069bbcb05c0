"""How models are cut."""

from typing import NamedTuple

import pytest

from actorlm.errors import ConfigError
from actorlm.partition import check_tensor, kv_share, rank_parameters, share, stages, vocab_share


class Model(NamedTuple):
    """SmolLM2-135M."""

    vocab_size: int = 49_152
    hidden_size: int = 576
    intermediate_size: int = 1_536
    num_layers: int = 30
    num_heads: int = 9
    num_kv_heads: int = 3
    tie_word_embeddings: bool = True
    num_parameters: int = 134_515_008


def refusal(model: Model, tensor: int) -> str:
    with pytest.raises(ConfigError) as caught:
        check_tensor(model, tensor)
    return str(caught.value)


def test_a_split_that_fits_is_silent():
    for size in (1, 3):
        check_tensor(Model(), size)


def test_heads_that_cannot_be_shared_are_named_with_what_fits():
    assert refusal(Model(), 2) == (
        "--tp 2: the model's 9 attention heads cannot be shared by 2 ranks; --tp may be 1 or 3"
    )


def test_features_that_cannot_be_shared_are_named():
    assert "1536 MLP features" in refusal(Model(), 9)


def test_key_value_heads_are_shared_or_copied_evenly():
    check_tensor(Model(num_heads=12, num_kv_heads=3), 6)
    assert "3 key-value heads" in refusal(Model(num_heads=12, num_kv_heads=3), 4)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(9, 3, 3), (8, 4, 2), (8, 2, 4), (8, 1, 4), (8, 8, 8), (9, 3, 9)]
)
def test_each_rank_has_the_key_value_heads_of_its_query_heads(heads, kv_heads, size):
    for rank in range(size):
        mine = kv_share(kv_heads, size, rank)
        assert {query // (heads // kv_heads) for query in share(heads, size, rank)} == set(mine)


@pytest.mark.parametrize("vocab_size", [1, 16, 17, 259, 49_152])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_every_id_has_one_rank(vocab_size, size):
    ids = [token for rank in range(size) for token in vocab_share(vocab_size, size, rank)]
    assert ids == list(range(vocab_size))


def test_stages_have_every_layer_once_in_order():
    for pipeline in range(1, 31):
        parts = stages(Model(), pipeline)
        assert [layer for part in parts for layer in part] == list(range(30))
        assert all(parts)


def test_stages_with_a_matrix_beside_their_layers_have_fewer():
    assert [len(part) for part in stages(Model(), 2)] == [15, 15]
    assert [len(part) for part in stages(Model(), 3)] == [7, 15, 8]


def test_a_list_of_layers_is_taken():
    assert stages(Model(), 2, [20, 10]) == (range(20), range(20, 30))


@pytest.mark.parametrize("listed", [[30], [15, 14], [30, 0], [10, 10, 10]])
def test_a_list_that_does_not_fit_is_refused(listed):
    with pytest.raises(ConfigError, match="must be 2 numbers from 1 on that add up to the model's 30 layers"):
        stages(Model(), 2, listed)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ConfigError, match="--pp may be 1 to 30"):
        stages(Model(), 31)


def test_ranks_share_all_parameters_and_several_stages_hold_a_tied_matrix_twice():
    model, matrix = Model(), 49_152 * 576
    assert sum(rank_parameters(model, 1, stages(model, 1))) == pytest.approx(model.num_parameters, rel=1e-3)
    assert sum(rank_parameters(model, 1, stages(model, 2))) == pytest.approx(model.num_parameters + matrix, rel=1e-3)
    (each,) = rank_parameters(model, 3, stages(model, 1))
    assert 3 * each == pytest.approx(model.num_parameters, rel=1e-3)
