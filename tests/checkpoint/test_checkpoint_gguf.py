"""GGUF files: every supported type, only the rows asked for, and one clear error for everything that can be wrong."""

import contextlib
import struct

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorlm.checkpoint.gguf import TENSOR_TYPES, GgufFile
from actorlm.errors import ModelError

ROWS, COLUMNS = 300, 512


def random_blocks(kind, rows, columns):
    """Bytes of a tensor of this type: any bytes are valid blocks (some scales are NaN)."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    return np.random.default_rng(1).integers(0, 256, (rows, columns // block_size * block_bytes), np.uint8)


@pytest.fixture
def written(tmp_path):
    """Writes a GGUF file with the given metadata (by a callback) and raw tensors."""

    def write(tensors=None, fill=lambda _writer: None):
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        fill(writer)
        for name, (data, kind) in (tensors or {}).items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def raw_file(tmp_path, body, version=3):
    path = tmp_path / "raw.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", version) + body)
    return path


def raw_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def raw_tensor(name, shape, kind, offset):
    return raw_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType(number) for number in TENSOR_TYPES])
def test_numbers_of_each_type_equal_the_librarys(written, kind):
    data = random_blocks(kind, ROWS, COLUMNS)
    file = GgufFile(written({"t": (data, kind)}))
    expected = gguf.quants.dequantize(data, kind)
    info = file.tensors["t"]
    assert info.shape == (ROWS, COLUMNS)
    assert info.type == kind.name
    assert info.size == data.nbytes
    numbers = file.read("t")
    assert numbers.dtype == np.float32
    assert numbers.flags.writeable
    np.testing.assert_array_equal(numbers, expected)
    for rows in (slice(0, 1), slice(7, 201), slice(290, None), slice(5, 5)):
        np.testing.assert_array_equal(file.read("t", rows), expected[rows])
    for columns in (slice(0, 1), slice(31, 33), slice(100, 200), slice(COLUMNS - 1, COLUMNS), slice(0, COLUMNS)):
        np.testing.assert_array_equal(file.read("t", slice(7, 9), columns), expected[7:9, columns])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_only_blocks_with_wanted_columns_are_read(written):
    kind = gguf.GGMLQuantizationType.Q4_1
    data = random_blocks(kind, 4, 256)
    with GgufFile(written({"t": (data, kind)})) as file:
        file.read("t", slice(1, 3), slice(40, 70))
        assert file.bytes_read == 2 * 2 * 20


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_quantised_numbers_come_back_close_to_what_was_quantised(written, name):
    kind = gguf.GGMLQuantizationType[name]
    numbers = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    file = GgufFile(written({"t": (gguf.quants.quantize(numbers, kind), kind)}))
    step = {"Q4_0": 0.6, "Q4_1": 0.4, "Q8_0": 0.02, "F16": 0.002, "BF16": 0.02}[name]
    assert np.abs(file.read("t") - numbers).max() < step


def test_a_q4_1_block_decoded_by_hand(written):
    block = np.frombuffer(struct.pack("<ee16B", 0.5, -1.0, *[0x21] * 16), np.uint8).reshape(1, 20)
    file = GgufFile(written({"t": (block, gguf.GGMLQuantizationType.Q4_1)}))
    assert file.read("t").tolist() == [[-0.5] * 16 + [0.0] * 16]


def test_one_dimension_and_rows_of_it(written):
    numbers = np.arange(10, dtype=np.float32)
    file = GgufFile(written({"norm": (numbers, gguf.GGMLQuantizationType.F32)}))
    assert file.read("norm").tolist() == numbers.tolist()
    assert file.read("norm", slice(2, 4)).tolist() == [2.0, 3.0]
    assert file.tensors["norm"].shape == (10,)


def test_several_tensors_keep_their_places(written):
    tensors = {f"t{i}": (np.full((3, i + 1), i, np.float32), gguf.GGMLQuantizationType.F32) for i in range(5)}
    with GgufFile(written(tensors)) as file:
        for name, (data, _) in tensors.items():
            np.testing.assert_array_equal(file.read(name), data)


def test_metadata_of_every_kind(written):
    def fill(writer):
        writer.add_uint32("a.u32", 7)
        writer.add_int64("a.i64", -7)
        writer.add_float64("a.f64", 0.5)
        writer.add_bool("a.bool", True)
        writer.add_string("a.text", "héllo")
        writer.add_array("a.texts", ["x", "", "日本"])
        writer.add_array("a.numbers", [1, 2, 3])

    metadata = GgufFile(written(fill=fill)).metadata
    assert metadata["general.architecture"] == "llama"
    values = [7, -7, 0.5, True, "héllo", ["x", "", "日本"], [1, 2, 3]]
    assert [metadata[f"a.{key}"] for key in ("u32", "i64", "f64", "bool", "text", "texts", "numbers")] == values


def test_a_missing_tensor_is_named(written):
    with pytest.raises(ModelError, match=r"has no tensor blk\.0"):
        GgufFile(written()).read("blk.0")


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" + bytes(100)])
def test_no_magic(tmp_path, content):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="is not a GGUF file"):
        GgufFile(path)


def test_missing_file_and_directory(tmp_path):
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot open"):
            GgufFile(path)


@pytest.mark.parametrize(("version", "words"), [(1, "version 1;"), (99, "version 99;"), (3 << 24, "big-endian")])
def test_versions_that_are_not_supported(tmp_path, version, words):
    with pytest.raises(ModelError, match=words):
        GgufFile(raw_file(tmp_path, bytes(16), version))


def test_an_unsupported_tensor_type_is_named_with_those_supported(tmp_path):
    body = struct.pack("<QQ", 1, 0) + raw_tensor("blk.0.ffn_up.weight", (256, 2), 10, 0)
    with pytest.raises(ModelError, match=r"ffn_up\.weight has type Q2_K.*F32, F16, Q4_0, Q4_1, Q8_0, Q4_K, Q5_K, Q6_K"):
        GgufFile(raw_file(tmp_path, body))


def test_a_truncated_file_says_both_numbers(written):
    path = written({"t": (np.zeros((4, 8), np.float32), gguf.GGMLQuantizationType.F32)})
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match=rf"tensor t ends at byte {len(whole)}, but the file has {len(whole) - 1}"):
        GgufFile(path)


def test_a_header_cut_anywhere_is_an_error_and_never_a_crash(written):
    def fill(writer):
        writer.add_array("tokens", ["a", "b"])
        writer.add_array("scores", [1.0, 2.0])

    path = written({"t": (np.zeros((4, 8), np.float32), gguf.GGMLQuantizationType.F32)}, fill)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            GgufFile(path)


HUGE = 2**63 - 1


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<QQ", HUGE, 0),
        struct.pack("<QQ", 0, HUGE),
        struct.pack("<QQQ", 0, 1, HUGE) + b"key",
        struct.pack("<QQ", 0, 1) + raw_string("k") + struct.pack("<IIQ", 9, 8, HUGE),
        struct.pack("<QQ", 0, 1) + raw_string("k") + struct.pack("<IIQ", 9, 4, HUGE),
        struct.pack("<QQ", 0, 1) + raw_string("k") + struct.pack("<IQ", 8, HUGE),
        struct.pack("<QQ", 1, 0) + raw_tensor("t", (HUGE, HUGE), 0, HUGE),
        struct.pack("<QQ", 1, 0) + raw_string("t") + struct.pack("<I", 2**32 - 1),
    ],
)
def test_hostile_counts_are_never_allocated(tmp_path, body):
    with pytest.raises(ModelError):
        GgufFile(raw_file(tmp_path, body + bytes(64)))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (struct.pack("<QQ", 0, 1) + raw_string("k") + struct.pack("<I", 77), "k has the unknown value type 77"),
        (struct.pack("<QQ", 0, 1) + raw_string("k") + struct.pack("<IIQ", 9, 9, 1), "array of the unsupported"),
        (struct.pack("<QQ", 0, 2) + (raw_string("k") + struct.pack("<IB", 0, 1)) * 2, "the key k twice"),
        (struct.pack("<QQ", 2, 0) + raw_tensor("t", (1,), 0, 0) * 2, "the tensor t twice"),
        (struct.pack("<QQ", 1, 0) + raw_tensor("t", (33,), 2, 0), "rows of 33, no multiple of 32"),
        (struct.pack("<QQQ", 0, 1, 1) + b"\xff", "not UTF-8"),
        (struct.pack("<QQ", 0, 1) + raw_string("split.count") + struct.pack("<IH", 2, 3), "gguf-split --merge"),
        (struct.pack("<QQ", 0, 1) + raw_string("general.alignment") + struct.pack("<II", 4, 0), "alignment is 0"),
    ],
)
def test_damage_is_named(tmp_path, body, words):
    with pytest.raises(ModelError, match=words):
        GgufFile(raw_file(tmp_path, body + bytes(64)))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory, body):
    path = tmp_path_factory.mktemp("any") / "x.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + body)
    with contextlib.suppress(ModelError):
        GgufFile(path).close()
