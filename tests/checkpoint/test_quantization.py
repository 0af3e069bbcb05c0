"""What quantization_config says, and what is refused by name."""

import pytest

from actorlm.checkpoint.quantization import Quantization, read_quantization
from actorlm.errors import ModelError

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "damp_percent": 0.1}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128, "actorder": None}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


def compressed(layout, weights, activations=None, **others):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    } | others


def read(config, **changes):
    return read_quantization(config | changes, "config.json")


def test_awq():
    assert read(AWQ) == Quantization(layout="awq", numbers="int4", scales="group", group=128, has_zeros=True)
    assert read(AWQ, modules_to_not_convert=["visual"]).ignored == ("visual",)
    assert read(AWQ, group_size=-1).scales == "channel"


def test_gptq():
    assert read(GPTQ) == Quantization(layout="gptq", numbers="int4", scales="group", group=128)
    found = read(GPTQ, checkpoint_format="gptq_v2", sym=False, group_size=32)
    assert found == Quantization(layout="gptq_v2", numbers="int4", scales="group", group=32, has_zeros=True)
    assert read(GPTQ, group_size=-1, desc_act=True).group is None


def test_fp8():
    assert read(FP8) == Quantization(layout="fp8", numbers="fp8", scales="block", quantizes_activations=True)
    assert read(FP8, weight_block_size=None).scales == "tensor"
    assert read(FP8, ignored_layers=["lm_head"]).ignored == ("lm_head",)


def test_compressed_tensors_with_four_bits():
    expected = Quantization(layout="pack-quantized", numbers="int4", scales="group", group=128, ignored=("lm_head",))
    assert read(compressed("pack-quantized", INT4)) == expected
    found = read(compressed("pack-quantized", INT4 | {"strategy": "channel", "group_size": None, "symmetric": False}))
    assert (found.scales, found.group, found.has_zeros) == ("channel", None, True)
    assert read(compressed("pack-quantized", INT4 | {"actorder": "weight"})) == expected


def test_compressed_tensors_with_eight_bits():
    found = read(compressed("int-quantized", INT8, TOKEN))
    assert (found.numbers, found.scales, found.quantizes_activations) == ("int8", "channel", True)
    fp8, token = INT8 | {"type": "float"}, TOKEN | {"type": "float"}
    assert read(compressed("float-quantized", fp8, token)).numbers == "fp8"
    assert read(compressed("float-quantized", fp8 | {"strategy": "tensor"}, token)).scales == "tensor"
    blocks = fp8 | {"strategy": "block", "block_structure": [128, 128]}
    groups = token | {"strategy": "group", "group_size": 128}
    assert read(compressed("float-quantized", blocks, groups)).scales == "block"


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({}, "quant_method null"),
        ({"quant_method": "bitsandbytes"}, "quant_method bitsandbytes"),
        (AWQ | {"bits": 8}, "bits 8"),
        (AWQ | {"version": "gemv"}, "version gemv"),
        (AWQ | {"zero_point": False}, "zero_point false"),
        (AWQ | {"group_size": 16}, "group_size 16"),
        (GPTQ | {"bits": 3}, "bits 3"),
        (GPTQ | {"desc_act": True}, "desc_act true"),
        (GPTQ | {"dynamic": {"-:.*": {}}}, 'dynamic {"-:.*":{}}'),
        (GPTQ | {"lm_head": True}, "lm_head true"),
        (GPTQ | {"pack_dtype": "int64"}, "pack_dtype int64"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format true"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format marlin"),
        (FP8 | {"activation_scheme": "static"}, "activation_scheme static"),
        (FP8 | {"fmt": "e5m2"}, "fmt e5m2"),
        (FP8 | {"scale_fmt": "ue8m0"}, "scale_fmt ue8m0"),
        (FP8 | {"weight_block_size": [64, 64]}, "weight_block_size [64,64]"),
        (compressed("nvfp4-pack-quantized", INT4), "config_groups.group_0.format nvfp4-pack-quantized"),
        (compressed("pack-quantized", INT4 | {"num_bits": 8}), "config_groups.group_0.weights.num_bits 8"),
        (compressed("pack-quantized", INT4 | {"type": "float"}), "config_groups.group_0.weights.type float"),
        (compressed("pack-quantized", INT4 | {"actorder": "group"}), "config_groups.group_0.weights.actorder group"),
        (compressed("pack-quantized", INT4 | {"strategy": "tensor"}), "config_groups.group_0.weights.strategy tensor"),
        (compressed("pack-quantized", INT4, TOKEN), "config_groups.group_0.input_activations {"),
        (compressed("pack-quantized", None), "config_groups.group_0.weights null"),
        (compressed("pack-quantized", INT4, kv_cache_scheme={"num_bits": 8}), 'kv_cache_scheme {"num_bits":8}'),
        (compressed("pack-quantized", INT4, sparsity_config={"format": "dense"}), "sparsity_config {"),
        (compressed("pack-quantized", INT4, transform_config={"config_groups": {}}), "transform_config {"),
        (compressed("pack-quantized", INT4, config_groups={}), "config_groups []"),
        (compressed("int-quantized", INT8), "config_groups.group_0.input_activations null"),
        (compressed("int-quantized", INT8 | {"symmetric": False}, TOKEN), "weights.symmetric false"),
        (compressed("int-quantized", INT8 | {"strategy": "block"}, TOKEN), "weights.strategy block"),
        (compressed("int-quantized", INT8, TOKEN | {"dynamic": False}), "input_activations.dynamic false"),
        (compressed("int-quantized", INT8, TOKEN | {"strategy": "tensor"}), "input_activations.strategy tensor"),
        (compressed("float-quantized", INT8, TOKEN), "weights.type int"),
    ],
)
def test_refusals_name_the_key_and_the_value(config, key):
    with pytest.raises(ModelError, match="not supported; supported: ") as refused:
        read(config)
    assert refused.value.message.startswith("config.json: quantization_config.")
    assert key in refused.value.message


def test_targets_other_than_all_linear_layers():
    config = compressed("pack-quantized", INT4)
    config["config_groups"]["group_0"]["targets"] = ["re:.*mlp.*"]
    with pytest.raises(ModelError, match="targets"):
        read(config)


def test_a_value_of_the_wrong_type():
    with pytest.raises(ModelError, match=r"^config.json: quantization_config: Expected `int`"):
        read(AWQ, bits="4")
