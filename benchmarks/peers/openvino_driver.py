"""OpenVINO GenAI in this process, with continuous batching; there is no HTTP. Runs in that package's environment.

    python openvino_driver.py MODEL.gguf THREADS CACHE_GIB

Says `{"ready": ...}` on standard output. Each line of standard input, `{"prompts": [...], "output_len": N}`, is
answered with a line: for each request the seconds from the beginning at which each of its tokens could be read from the
handle that its pipeline gives to whoever streams, and the tokens of its prompt. All requests are added at once. Where
the CPU multiplies bfloat16, OpenVINO computes in it: that is its default, and left as it is.
"""

import json
import sys
import time
from typing import Any

import openvino
import openvino_genai


def pipeline(model: str, threads: int, cache_gib: int) -> Any:
    """Greedy requests share `cache_gib` of keys and values."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = cache_gib
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = 2048
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    settings = {"INFERENCE_NUM_THREADS": threads}
    return openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", settings)


def answer(pipe: Any, tokenizer: Any, prompts: list[str], output_len: int, first_id: int) -> dict[str, Any]:
    """Runs all prompts together."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = output_len
    config.ignore_eos = True
    config.do_sample = False
    config.apply_chat_template = False
    began = time.perf_counter()
    handles = [pipe.add_request(first_id + index, prompt, config) for index, prompt in enumerate(prompts)]
    times: list[list[float]] = [[] for _ in prompts]
    while pipe.has_non_finished_requests():
        pipe.step()
        now = time.perf_counter() - began
        for handle, mine in zip(handles, times, strict=True):
            while handle.can_read():
                mine.extend([now] * sum(len(output.generated_ids) for output in handle.read().values()))
    counts = [tokenizer.encode(prompt, add_special_tokens=False).input_ids.shape[1] for prompt in prompts]
    return {"times": times, "prompt_tokens": counts}


def main() -> None:
    """Serves until standard input ends."""
    model, threads, cache_gib = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    pipe = pipeline(model, threads, cache_gib)
    tokenizer = pipe.get_tokenizer()
    say({"ready": openvino.__version__})
    first_id = 0
    for line in sys.stdin:
        asked = json.loads(line)
        say(answer(pipe, tokenizer, asked["prompts"], asked["output_len"], first_id))
        first_id += len(asked["prompts"])


def say(what: dict[str, Any]) -> None:
    """One line."""
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
