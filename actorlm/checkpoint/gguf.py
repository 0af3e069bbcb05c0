"""Reads GGUF files: metadata, where each tensor lies, and tensors as float32 numbers.

The header is read by the small parser below and not by `gguf.GGUFReader`, which makes several numpy arrays of every
vocabulary entry: 2.0 s for SmolLM2's 49,152 tokens, in every process that opens the file; this takes 0.04 s. The
numbers come from `gguf.quants.dequantize`, imported (with numpy) at the first read, since most processes read none.

A file is hostile until checked: no length it declares is allocated, and no tensor accepted, before it has been compared
with the file's size. Everything wrong with a file is a ModelError that names it.
"""

import math
import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from actorlm.errors import ModelError, reason_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Metadata value types by number, as struct formats. 8 is a string and 9 an array."""

NUMBERS_PER_CHUNK = 1 << 16
"""What is dequantised at once: the temporaries of 65,536 numbers stay in the cache. gguf's own 16 rows are slower."""


class TensorType(NamedTuple):
    """How a tensor type packs its numbers: `block_bytes` bytes hold `block_size` numbers of one row."""

    name: str
    block_size: int
    block_bytes: int


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}
"""The supported tensor types by ggml's numbers."""


class TensorInfo(NamedTuple):
    """Where a tensor lies. `shape` is row-major as in numpy, [out, in]; `offset` and `size` are bytes of the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size: int


_TYPES_BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}


class GgufFile:
    """An open GGUF file. `metadata` maps keys to int, float, bool, str or lists of these; `tensors` maps names.

    Raises ModelError if the file cannot be opened, is no GGUF file that this reader knows, or ends too early.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.bytes_read = 0
        """Of tensors, as they are packed."""
        self._map = _open(self.path)
        try:
            header = _Header(self._map, self.path)
            self.metadata = header.metadata
            self.tensors = header.tensors
        except BaseException:
            self._map.close()
            raise

    def section(self, prefix: str) -> dict[str, object]:
        """The metadata whose keys begin with `prefix`, without it."""
        return {key.removeprefix(prefix): value for key, value in self.metadata.items() if key.startswith(prefix)}

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> "NDArray[np.float32]":
        """The numbers of a tensor, or of `rows` of its first axis and `columns` of its last, as a new float32 array.

        Slices have a step of 1; `columns` are for matrices. Only the bytes of these rows, and of the blocks that hold
        these columns, are touched. Raises ModelError if the file has no such tensor.
        """
        info = self._info(name)
        if len(info.shape) == 1:
            assert columns is None, f"{name} has one axis"
            numbers = self._dequantize(info, self._bytes(info))
            return numbers if rows is None else numbers[rows].copy()
        first, last, blocks = self._blocks(info, columns)
        held = self._rows(info, rows)[:, blocks]
        numbers = self._dequantize(info, held.reshape(-1))
        if columns is None:
            return numbers.reshape(len(held), *info.shape[1:])
        before = first % _TYPES_BY_NAME[info.type].block_size
        return numbers.reshape(len(held), -1)[:, before : before + last - first].copy()

    def read_packed(self, name: str, rows: slice | None = None, columns: slice | None = None) -> "NDArray[np.uint8]":
        """The bytes of some rows of a matrix, or of the whole blocks of their `columns`, as a new array [rows, bytes].

        Raises ModelError if the file has no such tensor.
        """
        info = self._info(name)
        assert len(info.shape) == 2, f"{name} is no matrix"
        first, last, blocks = self._blocks(info, columns)
        size = _TYPES_BY_NAME[info.type].block_size
        assert first % size == last % size == 0, f"columns {first} to {last} of {name} are no whole blocks of {size}"
        packed = self._rows(info, rows)[:, blocks].copy()
        self.bytes_read += packed.size
        return packed

    def _rows(self, info: TensorInfo, rows: slice | None) -> "NDArray[np.uint8]":
        """The bytes of some rows of the first axis, [rows, bytes]."""
        begin, end, step = (rows or slice(None)).indices(info.shape[0])
        assert step == 1, f"rows of {info.name} with step {step}"
        return self._bytes(info).reshape(info.shape[0], -1)[begin : max(begin, end)]

    def _blocks(self, info: TensorInfo, columns: slice | None) -> tuple[int, int, slice]:
        """The first of some columns, the one after the last, and which bytes of a row their blocks are."""
        if columns is None:
            return 0, info.shape[-1], slice(None)
        assert len(info.shape) == 2, f"columns of {info.name}, which is no matrix"
        _, size, block_bytes = _TYPES_BY_NAME[info.type]
        first, last, _ = columns.indices(info.shape[1])
        return first, last, slice(first // size * block_bytes, -(-last // size) * block_bytes)

    def _info(self, name: str) -> TensorInfo:
        if name not in self.tensors:
            raise ModelError(f"{self.path} has no tensor {name}")
        return self.tensors[name]

    def _bytes(self, info: TensorInfo) -> "NDArray[np.uint8]":
        import numpy as np  # noqa: PLC0415 - see the head of this file

        return np.frombuffer(self._map, np.uint8, info.size, info.offset)

    def _dequantize(self, info: TensorInfo, packed: "NDArray[np.uint8]") -> "NDArray[np.float32]":
        """The numbers of whole blocks."""
        import gguf  # noqa: PLC0415 - see the head of this file
        import numpy as np  # noqa: PLC0415

        kind = gguf.GGMLQuantizationType[info.type]
        _, block_size, block_bytes = _TYPES_BY_NAME[info.type]
        self.bytes_read += len(packed)
        numbers = np.empty(len(packed) // block_bytes * block_size, np.float32)
        for start in range(0, len(numbers), NUMBERS_PER_CHUNK):
            stop = min(start + NUMBERS_PER_CHUNK, len(numbers))
            chunk = packed[start // block_size * block_bytes : stop // block_size * block_bytes]
            numbers[start:stop] = gguf.quants.dequantize(chunk, kind)
        return numbers

    def close(self) -> None:
        """Unmaps the file; arrays already read stay valid."""
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open(path: str) -> mmap.mmap:
    try:
        with Path(path).open("rb") as file:
            if file.read(4) != MAGIC:
                raise ModelError(f"{path} is not a GGUF file: it does not begin with the bytes GGUF")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"cannot open {path}: {reason_of(error)}") from error


class _Header:
    """A cursor over the header. Reading fills `metadata` and `tensors`."""

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self.data = data
        self.path = path
        self.size = len(data)
        self.position = len(MAGIC)
        self.metadata: dict[str, object] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            self._read()
        except struct.error:
            raise self._truncated("the header") from None
        except UnicodeDecodeError as error:
            raise ModelError(
                f"{path} is damaged: text near byte {self.position} is not UTF-8 ({error.reason})"
            ) from None

    def _read(self) -> None:
        self._check_version()
        tensor_count, key_count = self._unpack("<QQ")
        for _ in range(key_count):
            key = self._string()
            if key in self.metadata:
                raise ModelError(f"{self.path} is damaged: it has the key {key} twice")
            (kind,) = self._unpack("<I")
            self.metadata[key] = self._value(key, kind)
        self._check_split()
        described = [self._tensor() for _ in range(tensor_count)]
        self._place(described)

    def _unpack(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return values

    def _check_version(self) -> None:
        (version,) = self._unpack("<I")
        if version not in VERSIONS:
            big_endian = " (a big-endian file?)" if version & 0xFFFF == 0 else ""
            raise ModelError(f"{self.path} has GGUF version {version}{big_endian}; versions 2 and 3 are supported")

    def _check_split(self) -> None:
        count = self.metadata.get("split.count", 0)
        if isinstance(count, int) and count > 1:
            raise ModelError(f"{self.path} is one of {count} parts; join them with llama.cpp's `gguf-split --merge`")

    def _truncated(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is truncated or damaged: its {self.size} bytes end inside {what}")

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        data, position, unpack = self.data, self.position, struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            begin = position + 8
            position = begin + unpack(data, position)[0]
            if position > self.size:
                raise self._truncated("a string of the header")
            texts.append(str(data[begin:position], "utf-8"))
        self.position = position
        return texts

    def _value(self, key: str, kind: int) -> object:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array(key)
        if kind not in SCALARS:
            raise ModelError(f"{self.path} is damaged: {key} has the unknown value type {kind}")
        return self._unpack("<" + SCALARS[kind])[0]

    def _array(self, key: str) -> list[Any]:
        kind, count = self._unpack("<IQ")
        least = 8 if kind == STRING else struct.calcsize(SCALARS.get(kind, "B"))
        if count * least > self.size - self.position:
            raise self._truncated(f"the array {key} of {count} values")
        if kind == STRING:
            return self._strings(count)
        if kind not in SCALARS:
            raise ModelError(f"{self.path}: {key} is an array of the unsupported value type {kind}")
        return list(self._unpack(f"<{count}{SCALARS[kind]}"))

    def _tensor(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        name = self._string()
        (dimensions,) = self._unpack("<I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ModelError(f"{self.path} is damaged: tensor {name} has {dimensions} dimensions; 1 to 4 are possible")
        *shape, number, offset = self._unpack(f"<{dimensions}QIQ")
        if number not in TENSOR_TYPES:
            raise ModelError(_unsupported(self.path, name, number))
        return name, tuple(reversed(shape)), TENSOR_TYPES[number], offset

    def _place(self, described: list[tuple[str, tuple[int, ...], TensorType, int]]) -> None:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{self.path} is damaged: general.alignment is {alignment}")
        data_begin = -(-self.position // alignment) * alignment
        for name, shape, (kind, block_size, block_bytes), offset in described:
            if name in self.tensors:
                raise ModelError(f"{self.path} is damaged: it has the tensor {name} twice")
            if shape[-1] % block_size:
                raise ModelError(
                    f"{self.path} is damaged: {name} ({kind}) has rows of {shape[-1]}, no multiple of {block_size}"
                )
            info = TensorInfo(name, shape, kind, data_begin + offset, math.prod(shape) // block_size * block_bytes)
            if info.offset + info.size > self.size:
                raise ModelError(
                    f"{self.path} is truncated: tensor {name} ends at byte {info.offset + info.size}, "
                    f"but the file has {self.size}; download it again"
                )
            self.tensors[name] = info


def _unsupported(path: str, name: str, number: int) -> str:
    import gguf  # noqa: PLC0415 - only for the type's name in this message

    known = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    supported = ", ".join(kind.name for kind in TENSOR_TYPES.values())
    return f"{path}: tensor {name} has type {known.get(number, number)}, which is not supported; supported: {supported}"
