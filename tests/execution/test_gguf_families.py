"""Each family from GGUF, described and run, against transformers."""

import pytest
import torch
from driving import Driver, make_runner, random_prompts, step_logits
from tiny_models import FAMILIES, write_gguf

from actorlm.checkpoint.gguf_metadata import describe_gguf
from actorlm.kernels.native import choose_level

TOLERANCE = 1e-4
BIASES = {"llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False})}


@pytest.mark.parametrize("family", [*FAMILIES, *BIASES])
def test_logits_are_those_of_transformers(family, tmp_path):
    own, changes = BIASES.get(family, (family, {}))
    model = FAMILIES[own](tmp_path / "hub", num_hidden_layers=2, **changes)
    write_gguf(own, model, tmp_path / "tiny.gguf")
    description = describe_gguf(tmp_path / "tiny.gguf", family)
    prompts = random_prompts(11, 40, 17, 3)
    for kernels in ("torch", "native") if choose_level("auto") else ("torch",):
        driver = Driver(make_runner(description, kernels=kernels), 128)
        for slot, prompt in enumerate(prompts):
            driver.add(slot, [*prompt, 0])
        rows = [(slot, len(prompt)) for slot, prompt in enumerate(prompts)]
        for prompt, logits in zip(prompts, step_logits(driver, rows), strict=True):
            with torch.inference_mode():
                expected = model(torch.tensor([prompt])).logits[0]
            torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)
