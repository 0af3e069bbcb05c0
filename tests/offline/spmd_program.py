"""What each rank of a job runs in test_spmd.py: `python spmd_program.py MODEL WHAT`. Prints one line of JSON."""

import json
import os
import sys
import time

from actorlm import LLM, SamplingParams
from actorlm.errors import ActorlmError

PROMPTS = [[1, 2, 3], [7] * 40, [5, 6]]
GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)


def outputs(llm, prompts=PROMPTS, params=GREEDY):
    """Token ids of each prompt's choice."""
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def equal(llm):
    """Greedy ids, drawn ids without a seed, and scores."""
    drawn = SamplingParams(max_tokens=12, temperature=1.0, logprobs=2, ignore_eos=True)
    scored = llm.generate(PROMPTS, drawn, use_tqdm=False)
    places = [len(output.outputs[0].logprobs) for output in scored]
    return [outputs(llm), [output.outputs[0].token_ids for output in scored], places]


def part(llm):
    """Rank 1 goes a way of its own."""
    rank = int(os.environ["RANK"])
    return outputs(llm, [[1, 2, 3 + rank]])


def die(llm):
    """Rank 1 ends between two calls, without a word."""
    outputs(llm)
    if os.environ["RANK"] == "1":
        os._exit(3)
    time.sleep(1)
    began = time.monotonic()
    try:
        return outputs(llm)
    finally:
        print(json.dumps({"waited_s": time.monotonic() - began}))


def main():
    """Runs what the arguments say."""
    model, what, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    try:
        with LLM(model, executor="external", kv_cache_tokens=1024, max_num_seqs=8, threads=1, **options) as llm:
            result = {"equal": equal, "part": part, "die": die}[what](llm)
    except ActorlmError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
        sys.exit(1)
    print(json.dumps({"result": result}))


main()
