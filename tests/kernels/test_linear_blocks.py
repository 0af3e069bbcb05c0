"""Products with the blocks of GGUF files: the numbers of gguf itself, and of an oracle with the same inputs."""

import pytest
import torch
from gguf_tensors import gguf_tensor
from native_levels import on_all_levels

from actorlm.kernels.file_matrix import FileMatrix
from actorlm.kernels.linear import gather_rows, linear, rows_of
from actorlm.kernels.linear_blocks import FORMS, BlockMatrix, blocks_bytes, reference
from actorlm.kernels.native import Native, runnable_levels
from actorlm.layers.arena import Arena

KINDS = pytest.mark.parametrize("kind", list(FORMS))


def filled(native, kind, rows, columns, seed=0):
    """A matrix, and its numbers."""
    packed, numbers = gguf_tensor(kind, rows, columns, seed)
    size = blocks_bytes(native, FORMS[kind], rows, columns)
    matrix = BlockMatrix(native, FORMS[kind], torch.zeros(size, dtype=torch.uint8), (rows, columns))
    matrix.put(0, packed)
    return matrix, numbers


def check(made, expected, x, numbers):
    """The inputs may be rounded the other way where they lie between two bytes; then few of them differ by one."""
    sizes = x.abs() @ numbers.abs().t()
    assert ((made - expected).abs() <= 1e-6 * sizes + 1e-6).all()


@on_all_levels
@KINDS
@pytest.mark.parametrize(("rows", "columns"), [(40, 512), (16, 256), (1, 768)])
def test_every_number_is_ggufs(native, kind, rows, columns):
    matrix, numbers = filled(native, kind, rows, columns)
    assert torch.equal(matrix.unpacked(), numbers)
    ids = torch.tensor([rows - 1, 0, rows // 2])
    assert torch.equal(gather_rows(matrix, ids), numbers[ids])


@on_all_levels
@KINDS
@pytest.mark.parametrize("has_bias", [False, True])
def test_products(native, kind, has_bias):
    torch.manual_seed(1)
    matrix, numbers = filled(native, kind, 40, 512)
    bias = torch.randn(40) if has_bias else None
    for rows in (1, 3, 12, 13, 40):
        x, before = torch.randn(rows, 512) * torch.rand(rows, 1), torch.randn(rows, 40)
        for adds in (False, True):
            made, expected = before.clone(), before.clone()
            linear(made, x, matrix, bias, adds=adds)
            reference(expected, x, numbers, bias, adds=adds)
            check(made, expected, x, numbers)


@on_all_levels
@KINDS
def test_a_row_has_the_same_bits_in_any_batch(native, kind):
    torch.manual_seed(2)
    matrix, _ = filled(native, kind, 50, 256)
    x = torch.randn(90, 256)
    alone = torch.cat([(linear(one := torch.empty(1, 50), row[None], matrix), one)[1] for row in x])
    for begin, end in [(0, 90), (3, 5), (7, 20), (50, 81)]:
        out = torch.empty(end - begin, 50)
        linear(out, x[begin:end], matrix)
        assert torch.equal(out, alone[begin:end])


@pytest.mark.skipif(len(runnable_levels()) < 3, reason="needs a CPU with AVX-512, and compiled kernels")
@KINDS
def test_instruction_sets_give_the_same_bits(kind):
    torch.manual_seed(3)
    x, outs = torch.randn(30, 512), []
    for level in runnable_levels()[1:]:
        outs.append(torch.empty(30, 40))
        linear(outs[-1], x, filled(Native(level, threads=1), kind, 40, 512)[0])
    assert all(torch.equal(out, outs[0]) for out in outs)


@on_all_levels
def test_a_matrix_of_several_types(native):
    """Each run of rows keeps its type; rows that come in slices belong to one run."""
    matrix = Arena("gguf", native).matrix(96, 256)
    assert isinstance(matrix, FileMatrix)
    parts, begin = [("Q4_K", 30, 2), ("Q4_K", 18, 3), ("F16", 20, 0), ("Q6_K", 28, 4)], 0
    numbers = []
    for kind, count, seed in parts:
        if kind == "F16":
            packed = whole = torch.randn(count, 256).half().float()
        else:
            packed, whole = gguf_tensor(kind, count, 256, seed)
        rows = rows_of(matrix, begin, count)
        rows.put(0, kind, packed[:5])
        rows.put(5, kind, packed[5:])
        assert torch.equal(rows.read(), whole)
        numbers.append(whole)
        begin += count
    assert [run.kind for run in matrix.runs] == ["Q4_K", "F16", "Q6_K"]
    weight, x, bias = torch.cat(numbers), torch.randn(7, 256), torch.randn(96)
    out, expected = torch.empty(7, 96), torch.empty(7, 96)
    linear(out, x, matrix, bias)
    reference(expected[:, :48], x, weight[:48], bias[:48], adds=False)
    expected[:, 48:68] = x @ weight[48:68].t() + bias[48:68]
    reference(expected[:, 68:], x, weight[68:], bias[68:], adds=False)
    check(out, expected, x, weight)


@on_all_levels
def test_a_matrix_that_nobody_filled_is_zeros(native):
    matrix = Arena("gguf", native).matrix(16, 32)
    out = torch.ones(2, 16)
    linear(out, torch.randn(2, 32), matrix)
    assert not out.any()
    assert not gather_rows(matrix, torch.tensor([3])).any()


@on_all_levels
def test_rows_that_are_no_whole_blocks_are_refused(native):
    with pytest.raises(AssertionError, match="whole blocks"):
        blocks_bytes(native, FORMS["Q4_0"], 16, 40)
    matrix, _ = filled(native, "Q4_0", 16, 64)
    with pytest.raises(AssertionError, match="whole blocks"):
        matrix.put(0, torch.zeros(1, 18, dtype=torch.uint8))
