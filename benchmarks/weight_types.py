"""What forms of weights and types of KV caches cost in accuracy, on real text, beside float32.

    python benchmarks/weight_types.py [MODEL]

Prints for each form the perplexity of some windows of this project's own pages, and how many greedy tokens come before
the first that differs from float32's. `gguf` keeps the blocks of the file; the others begin with their numbers.
"""

import argparse
import math
import statistics
from pathlib import Path

from actorlm import LLM, SamplingParams

FORMS = (
    {"dtype": "float32"},
    {"dtype": "float16"},
    {"dtype": "bfloat16"},
    {"dtype": "float32", "weights": "int8"},
    {"dtype": "float32", "weights": "gguf"},
    {"dtype": "float32", "kv_cache_dtype": "int8"},
    {"weights": "int8", "kv_cache_dtype": "int8"},
    {"weights": "gguf", "kv_cache_dtype": "int8"},
)
WINDOW, BEGINNING, GENERATED = 512, 64, 64
PAGES = Path(__file__).parents[1] / "docs"


def windows(llm: LLM) -> list[list[int]]:
    """One of each page that is long enough: token ids."""
    prompts = [page.read_text() for page in sorted(PAGES.glob("*.md"))[:12]]
    ids = [output.prompt_token_ids for output in llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)]
    return [each[:WINDOW] for each in ids if len(each) >= WINDOW]


def perplexity(llm: LLM, prompts: list[list[int]]) -> float:
    """Of all tokens but the first of each prompt."""
    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    total, count = 0.0, 0
    for output in llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False):
        for token, known in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
            total -= known[token].logprob
            count += 1
    return math.exp(total / count)


def greedy(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    """What follows the beginning of each prompt."""
    params = SamplingParams(max_tokens=GENERATED, temperature=0, ignore_eos=True)
    beginnings = [{"prompt_token_ids": ids[:BEGINNING]} for ids in prompts]
    return [list(output.outputs[0].token_ids) for output in llm.generate(beginnings, params, use_tqdm=False)]


def same(ids: list[int], expected: list[int]) -> int:
    """Tokens before the first that differs."""
    return next((i for i, (a, b) in enumerate(zip(ids, expected, strict=True)) if a != b), len(ids))


def main() -> None:
    """Runs all forms, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    model = parser.parse_args().model
    prompts: list[list[int]] = []
    expected: list[list[int]] = []
    print(f"| weights, KV cache | perplexity | of {GENERATED} greedy tokens as in float32: mean |")
    print("| --- | --- | --- |")
    for form in FORMS:
        with LLM(model, max_model_len=8192, kv_cache_tokens=32 * WINDOW, **form) as llm:
            prompts = prompts or windows(llm)
            ids = greedy(llm, prompts)
            expected = expected or ids
            alike = statistics.mean(map(same, ids, expected))
            said = ", ".join(f"{name} {value}" for name, value in form.items())
            print(f"| {said} | {perplexity(llm, prompts):.3f} | {alike:.1f} |", flush=True)


if __name__ == "__main__":
    main()
