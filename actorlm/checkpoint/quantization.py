"""How a checkpoint's weights are quantized, from `quantization_config` in its config.json.

What a description cannot express is refused, with the name and the value of the key.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from actorlm.checkpoint.typed_json import convert
from actorlm.errors import ModelError

GROUPS = (32, 64, 128)
BLOCK = 128

Layout = Literal["awq", "gptq", "gptq_v2", "pack-quantized", "int-quantized", "float-quantized", "fp8"]
Scales = Literal["group", "channel", "tensor", "block"]


class Quantization(Struct, frozen=True, kw_only=True):
    """The linear layers of a model, except those in `ignored`: their names, ends of names, or `re:` and a pattern."""

    layout: Layout
    """Which tensors there are and how numbers lie in them: `gptq` has zero points less one, `gptq_v2` as they are."""
    numbers: Literal["int4", "int8", "fp8"]
    scales: Scales
    """What of a weight shares a scale: a group of an output's inputs, an output, the whole, or a block of 128 x 128."""
    group: int | None = None
    """Inputs that share a scale, if `scales` is "group"."""
    has_zeros: bool = False
    """Whether groups have zero points. GPTQ's have tensors of them in any case."""
    quantizes_activations: bool = False
    """Whether rows of activations are quantized too, as they come: with blocks each 128 inputs apart, else whole."""
    ignored: tuple[str, ...] = ()


class _Awq(Struct, frozen=True):
    bits: int
    group_size: int
    zero_point: bool = True
    version: str = "gemm"
    modules_to_not_convert: list[str] | None = None


class _Gptq(Struct, frozen=True):
    bits: int
    group_size: int
    desc_act: bool = False
    sym: bool = True
    checkpoint_format: str = "gptq"
    dynamic: dict[str, Any] | None = None
    lm_head: bool = False
    pack_dtype: str = "int32"
    is_marlin_format: bool = False


class _Fp8(Struct, frozen=True):
    activation_scheme: str
    fmt: str = "e4m3"
    scale_fmt: str | None = None
    weight_block_size: list[int] | None = None
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None


class _Numbers(Struct, frozen=True):
    num_bits: int
    type: str = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: int | None = None
    block_structure: list[int] | str | None = None
    actorder: str | bool | None = None
    dynamic: bool | str = False


class _Group(Struct, frozen=True):
    targets: list[str]
    weights: _Numbers | None = None
    input_activations: _Numbers | None = None
    output_activations: _Numbers | None = None
    format: str | None = None


class _CompressedTensors(Struct, frozen=True):
    config_groups: dict[str, _Group]
    format: str = "dense"
    ignore: list[str] = []
    kv_cache_scheme: dict[str, Any] | None = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None


def read_quantization(config: dict[str, Any], where: str) -> Quantization:
    """The description of a `quantization_config`. Messages begin with `where`, which names the file."""
    where = f"{where}: quantization_config"
    match config.get("quant_method"):
        case "awq":
            return _awq(convert(config, _Awq, where), where)
        case "gptq":
            return _gptq(convert(config, _Gptq, where), where)
        case "fp8":
            return _fp8(convert(config, _Fp8, where), where)
        case "compressed-tensors":
            return _compressed_tensors(convert(config, _CompressedTensors, where), where)
        case method:
            raise _refusal(where, "quant_method", method, "awq, gptq, fp8, compressed-tensors")


def _awq(config: _Awq, where: str) -> Quantization:
    _check(
        where,
        bits=(config.bits, 4),
        zero_point=(config.zero_point, True),
        version=(config.version.lower(), "gemm"),
    )
    _check_group(where, config.group_size)
    return Quantization(
        layout="awq",
        numbers="int4",
        scales=_group_or_channel(config.group_size),
        group=_group(config.group_size),
        has_zeros=True,
        ignored=tuple(config.modules_to_not_convert or ()),
    )


def _gptq(config: _Gptq, where: str) -> Quantization:
    if config.checkpoint_format not in ("gptq", "gptq_v2"):
        raise _refusal(where, "checkpoint_format", config.checkpoint_format, "gptq, gptq_v2")
    _check(
        where,
        bits=(config.bits, 4),
        dynamic=(config.dynamic or None, None),
        lm_head=(config.lm_head, False),
        pack_dtype=(config.pack_dtype, "int32"),
        is_marlin_format=(config.is_marlin_format, False),
    )
    _check_group(where, config.group_size)
    if config.group_size != -1:
        _check(where, desc_act=(config.desc_act, False))
    return Quantization(
        layout="gptq_v2" if config.checkpoint_format == "gptq_v2" else "gptq",
        numbers="int4",
        scales=_group_or_channel(config.group_size),
        group=_group(config.group_size),
        has_zeros=not config.sym,
    )


def _fp8(config: _Fp8, where: str) -> Quantization:
    _check(
        where,
        activation_scheme=(config.activation_scheme, "dynamic"),
        fmt=(config.fmt, "e4m3"),
        scale_fmt=(config.scale_fmt, None),
    )
    if config.weight_block_size is not None:
        _check(where, weight_block_size=(config.weight_block_size, [BLOCK, BLOCK]))
    return Quantization(
        layout="fp8",
        numbers="fp8",
        scales="tensor" if config.weight_block_size is None else "block",
        quantizes_activations=True,
        ignored=(*(config.modules_to_not_convert or ()), *(config.ignored_layers or ())),
    )


def _compressed_tensors(config: _CompressedTensors, where: str) -> Quantization:
    _check(
        where,
        kv_cache_scheme=(config.kv_cache_scheme, None),
        sparsity_config=(config.sparsity_config or None, None),
        transform_config=(config.transform_config or None, None),
    )
    if len(config.config_groups) != 1:
        raise _refusal(where, "config_groups", list(config.config_groups), "one group")
    name, group = next(iter(config.config_groups.items()))
    where, layout = f"{where}.config_groups.{name}", group.format or config.format
    _check(where, targets=(group.targets, ["Linear"]), output_activations=(group.output_activations, None))
    if group.weights is None:
        raise _refusal(where, "weights", None, "what weights are")
    match layout, group.input_activations:
        case "pack-quantized", None:
            found = _packed(group.weights, f"{where}.weights")
        case (("int-quantized" | "float-quantized"), _Numbers() as activations):
            found = _eight_bits(layout, group.weights, activations, where)
        case (("pack-quantized" | "int-quantized" | "float-quantized"), activations):
            wanted = "null" if layout == "pack-quantized" else f"numbers, with the format {layout}"
            raise _refusal(where, "input_activations", activations and msgspec.to_builtins(activations), wanted)
        case _:
            raise _refusal(where, "format", layout, "pack-quantized, int-quantized, float-quantized")
    return msgspec.structs.replace(found, ignored=tuple(config.ignore))


def _packed(weights: _Numbers, where: str) -> Quantization:
    if weights.strategy not in ("group", "channel"):
        raise _refusal(where, "strategy", weights.strategy, "group, channel")
    _check(where, num_bits=(weights.num_bits, 4), type=(weights.type, "int"))
    if weights.actorder not in (None, False, "weight", "static"):
        raise _refusal(where, "actorder", weights.actorder, "null, weight")
    size = -1 if weights.strategy == "channel" or weights.group_size is None else weights.group_size
    _check_group(where, size)
    return Quantization(
        layout="pack-quantized",
        numbers="int4",
        scales=_group_or_channel(size),
        group=_group(size),
        has_zeros=not weights.symmetric,
    )


def _eight_bits(
    layout: Literal["int-quantized", "float-quantized"], weights: _Numbers, activations: _Numbers, where: str
) -> Quantization:
    kind, inputs = "int" if layout == "int-quantized" else "float", f"{where}.input_activations"
    for part, numbers in ((f"{where}.weights", weights), (inputs, activations)):
        _check(part, num_bits=(numbers.num_bits, 8), type=(numbers.type, kind), symmetric=(numbers.symmetric, True))
    _check(inputs, dynamic=(activations.dynamic, True))
    match weights.strategy:
        case "channel" | "tensor" as scales:
            _check(inputs, strategy=(activations.strategy, "token"))
        case "block" as scales if kind == "float":
            _check(f"{where}.weights", block_structure=(weights.block_structure, [BLOCK, BLOCK]))
            _check(inputs, strategy=(activations.strategy, "group"), group_size=(activations.group_size, BLOCK))
        case strategy:
            wanted = "channel, tensor" if kind == "int" else "channel, tensor, block"
            raise _refusal(f"{where}.weights", "strategy", strategy, wanted)
    return Quantization(
        layout=layout, numbers="int8" if kind == "int" else "fp8", scales=scales, quantizes_activations=True
    )


def _group_or_channel(size: int) -> Scales:
    return "channel" if size == -1 else "group"


def _group(size: int) -> int | None:
    return None if size == -1 else size


def _check_group(where: str, size: int) -> None:
    if size not in (-1, *GROUPS):
        raise _refusal(where, "group_size", size, f"{', '.join(map(str, GROUPS))}, -1")


def _check(where: str, **values: tuple[object, object]) -> None:
    """Refuses the first key whose value is not the one beside it."""
    for key, (value, wanted) in values.items():
        if value != wanted:
            raise _refusal(where, key, value, msgspec.json.encode(wanted).decode())


def _refusal(where: str, key: str, value: object, supported: str) -> ModelError:
    shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return ModelError(f"{where}.{key} {shown} is not supported; supported: {supported}")
