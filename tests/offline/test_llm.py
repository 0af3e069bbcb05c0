"""`LLM` as its users see it."""

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref

import numpy as np
import pytest

from actorlm import LLM, SamplingParams
from actorlm.errors import (
    BadRequest,
    Closed,
    ConfigError,
    ContextLengthExceeded,
    ExecutorFailed,
    InsufficientMemory,
    ModelError,
)
from actorlm.kernels import native

GREEDY = SamplingParams(temperature=0, max_tokens=64)
LONG = SamplingParams(max_tokens=100_000, ignore_eos=True)


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def first(outputs):
    return [output.outputs[0] for output in outputs]


@pytest.mark.timeout(600)
def test_golden_ids_in_one_batch(smollm2, golden):
    outputs = smollm2.generate([item["prompt_ids"] for item in golden], GREEDY)
    assert [choice.token_ids for choice in first(outputs)] == [item["greedy_ids"] for item in golden]
    assert [choice.text for choice in first(outputs)] == [item["greedy_text"] for item in golden]
    assert [output.prompt_token_ids for output in outputs] == [item["prompt_ids"] for item in golden]


@pytest.mark.timeout(600)
def test_chat_renders_as_the_reference(smollm2, golden):
    item = golden[0]
    (output,) = smollm2.chat([{"role": "user", "content": item["prompt"]}], GREEDY)
    assert output.prompt_token_ids == item["prompt_ids"]
    assert output.outputs[0].token_ids == item["greedy_ids"]
    assert output.outputs[0].text == item["greedy_text"]


def test_the_default_model_is_the_one_that_is_pulled(smollm2):
    assert smollm2._session.model.name == "smollm2-135m"


def test_every_form_of_a_prompt(null):
    llm, ids = null(), list(b"abc")
    forms = ["abc", ids, tuple(ids), np.array(ids), {"prompt": "abc"}, {"prompt_token_ids": ids}]
    outputs = llm.generate(forms, GREEDY)
    assert all(output.prompt_token_ids == ids for output in outputs)
    assert [output.prompt for output in outputs] == ["abc", None, None, None, "abc", None]
    assert len({choice.text for choice in first(outputs)}) == 1
    for form in forms:
        assert llm.generate(form, GREEDY)[0].outputs == outputs[0].outputs
    assert llm.generate([]) == []


def test_the_tokens_are_those_of_the_null_model(null, oracle):
    params = SamplingParams(max_tokens=40, seed=5, n=3)
    (output,) = null().generate([[1, 2, 3]], params)
    expected = [oracle.generated([1, 2, 3], 40, seed=5, choice=choice) for choice in range(3)]
    assert [choice.token_ids for choice in output.outputs] == expected
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert output.finished


def test_results_are_in_input_order_though_they_end_in_another(null):
    lengths = [30, 1, 20, 2, 10, 3]
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = null(max_num_seqs=2).generate([[i] for i in range(6)], params)
    assert [len(choice.token_ids) for choice in first(outputs)] == lengths
    assert [output.prompt_token_ids for output in outputs] == [[i] for i in range(6)]
    assert [output.request_id for output in outputs] == ["0", "1", "2", "3", "4", "5"]


def test_the_batch_does_not_matter(tiny):
    prompts = [[i, i + 1, i + 2] for i in range(20)]
    params = SamplingParams(seed=3, max_tokens=30)
    together = tiny(kv_cache_tokens=256, max_num_batched_tokens=16).generate(prompts, params)
    alone = tiny()
    assert first(together) == [alone.generate(prompt, params)[0].outputs[0] for prompt in prompts]
    assert len({tuple(choice.token_ids) for choice in first(together)}) > 10


def test_how_a_choice_ends(null, oracle):
    llm = null()
    text = oracle.decoded(oracle.generated([1], 60, ends=()))
    last = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    a = SamplingParams(temperature=0, logit_bias={65: 100.0}, stop=["AAA", "x"], max_tokens=50)
    b = SamplingParams(temperature=0, logit_bias={66: 100.0}, stop_token_ids=[66], max_tokens=50)
    c = SamplingParams(temperature=0, logit_bias={oracle.END_OF_TEXT: 100.0})
    d = SamplingParams(temperature=0, logit_bias={65: 100.0}, stop="AA", include_stop_str_in_output=True)
    got = [
        (choice.text, choice.token_ids[:3], choice.finish_reason, choice.stop_reason)
        for choice in first(llm.generate([[1]] * 5, [last, a, b, c, d]))
    ]
    assert got == [
        (text, oracle.generated([1], 60, ends=())[:3], "length", None),
        ("", [65, 65, 65], "stop", "AAA"),
        ("", [66], "stop", 66),
        ("", [oracle.END_OF_TEXT], "stop", None),
        ("AA", [65, 65], "stop", "AA"),
    ]


def test_log_probabilities_have_vllms_shape(tiny):
    llm = tiny(max_num_batched_tokens=16)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=1, n=2)
    prompt = list(range(1, 41))
    (output,) = llm.generate([prompt], params)
    one, other = output.outputs
    assert [list(place) for place in one.logprobs] == [list(place) for place in other.logprobs]
    assert one.token_ids == [next(iter(place)) for place in one.logprobs]
    assert one.cumulative_logprob == pytest.approx(sum(next(iter(place.values())).logprob for place in one.logprobs))
    for place in one.logprobs:
        assert [known.rank for known in place.values()] == [1, 2, 3]
        assert sorted((known.logprob for known in place.values()), reverse=True) == [k.logprob for k in place.values()]
    assert output.prompt_logprobs[0] is None
    assert [next(iter(place)) for place in output.prompt_logprobs[1:]] == prompt[1:]
    assert all(len(place) == 1 + (next(iter(place.values())).rank > 1) for place in output.prompt_logprobs[1:])
    assert one.logprobs[0][one.token_ids[0]].decoded_token == llm._session._preparation._tokenizer.decode(
        one.token_ids[:1], skip_special_tokens=False
    )
    (plain,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    assert (plain.prompt_logprobs, plain.outputs[0].logprobs, plain.outputs[0].cumulative_logprob) == (None, None, None)
    assert plain.outputs[0].token_ids == one.token_ids


def test_log_probabilities_of_tokens_by_id(tiny):
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logprob_token_ids=[5, 6])
    for place in tiny().generate([[1, 2]], params)[0].outputs[0].logprobs:
        assert list(place)[-2:] == [5, 6]
        assert place[6].rank is None


def test_words_that_never_come(null):
    greedy = SamplingParams(temperature=0, max_tokens=8, logit_bias={65: 100, 66: 50}, bad_words=["AA"])
    assert null().generate("x", greedy)[0].outputs[0].text == "ABABABAB"
    with pytest.raises(BadRequest, match="bad_words has ' '"):
        null().generate("x", SamplingParams(bad_words=[" "]))


def test_max_tokens_are_16_and_none_is_all_the_room(null):
    llm = null(max_model_len=100)
    outputs = llm.generate(
        [[1, 2]] * 2, [SamplingParams(ignore_eos=True), SamplingParams(ignore_eos=True, max_tokens=None)]
    )
    assert [len(choice.token_ids) for choice in first(outputs)] == [16, 98]


def test_a_seed_for_the_llm_makes_runs_repeat(null):
    prompts = [[1]] * 4
    one, other = (null(seed=7).generate(prompts, SamplingParams(n=2, ignore_eos=True)) for _ in range(2))
    assert one == other
    assert len({tuple(choice.token_ids) for output in one for choice in output.outputs}) == 8, "each its own seed"
    assert null(seed=8).generate(prompts, SamplingParams(n=2, ignore_eos=True)) != one
    drawn = null().generate(prompts, SamplingParams(ignore_eos=True))
    assert len({tuple(choice.token_ids) for choice in first(drawn)}) == 4


def test_equal_prefixes_are_computed_once(null):
    llm, prompt = null(), list(range(64))
    cached = [llm.generate([prompt])[0].num_cached_tokens for _ in range(2)]
    assert cached == [0, 48]
    assert null(prefix_caching=False).generate([prompt, prompt])[1].num_cached_tokens == 0


def test_chats_are_rendered_by_the_template(null):
    llm = null()
    one = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    text = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    (output,) = llm.chat(one, GREEDY)
    assert output.prompt == text + "<|im_start|>assistant\n"
    assert output.prompt_token_ids[0] == 257
    outputs = llm.chat([one, one], GREEDY, add_generation_prompt=False)
    assert [output.prompt for output in outputs] == [text, text]


@pytest.mark.parametrize(
    ("prompts", "params", "error", "named"),
    [
        (["a", ""], None, BadRequest, r"prompts\[1\] is empty"),
        (["a", {"text": "b"}], None, BadRequest, r"prompts\[1\] has the key text"),
        ([{}], None, BadRequest, r"prompts\[0\] needs either"),
        ([{"prompt": 5}], None, BadRequest, r"prompts\[0\]: prompt is a int"),
        ([1.5], None, BadRequest, r"prompts\[0\] is neither"),
        ([[1], [2, 999]], None, BadRequest, r"prompts\[1\] has token id 999"),
        ([[1], [2] * 100], None, ContextLengthExceeded, r"holds 64 tokens.*prompts\[1\] has 100; shorten it"),
        (["a"], SamplingParams(temperature=3), BadRequest, r"params: temperature is 3: Expected `float` <= 2"),
        (["a"] * 2, [SamplingParams(), SamplingParams(top_p=0)], BadRequest, r"params\[1\]: top_p"),
        (["a"], SamplingParams(stop=[""]), BadRequest, "params: stop"),
        (["a"], SamplingParams(max_tokens=0), BadRequest, "params: max_tokens"),
        (["a"], SamplingParams(min_tokens=17), BadRequest, r"min_tokens \(17\) is above max_tokens \(16\)"),
        (["a"], SamplingParams(logit_bias={300: 1}), BadRequest, "logit_bias has token id 300"),
        (["a", "b"], [SamplingParams()], BadRequest, "1 params and 2 prompts"),
        (["a"], {"temperature": 0}, BadRequest, "params is a dict; it must be actorlm.SamplingParams"),
        (["a"], [None], BadRequest, r"params\[0\] is a NoneType"),
        (["a"], SamplingParams(logit_bias={"x": 1}), BadRequest, "logit_bias has the key 'x'"),
        (["a"], SamplingParams(presence_penalty=5), BadRequest, "params: presence_penalty"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(null, prompts, params, error, named):
    llm = null(max_model_len=64)
    with pytest.raises(error, match=named):
        llm.generate(prompts, params)
    assert llm._session._engine._core.steps == 0
    llm.generate("a")


def test_a_prompt_that_the_cache_can_never_hold(null):
    with pytest.raises(ContextLengthExceeded, match=r"holds 33 tokens.*prompts\[0\] has 40"):
        null(kv_cache_tokens=32).generate([[1] * 40])
    assert len(null(kv_cache_tokens=32).generate([[1] * 32])[0].outputs[0].token_ids) == 1


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([{"role": "nobody", "content": "a"}], r"messages\[0\].*nobody"),
        ([[{"role": "user", "content": "a"}], [{"content": "a"}]], r"messages\[1\].*role"),
        ([{"role": "user", "text": "a"}], r"messages\[0\].*text"),
    ],
)
def test_a_bad_message_is_named(null, messages, named):
    with pytest.raises(BadRequest, match=named):
        null().chat(messages)


def test_variables_of_the_template(null):
    messages = [{"role": "user", "content": "a"}]
    assert null().chat(messages, chat_template_kwargs={"where": 1, "unknown": 2})[0].finished
    with pytest.raises(BadRequest, match="messages cannot be a variable"):
        null().chat(messages, chat_template_kwargs={"messages": []})


def test_a_model_without_a_template_says_so(tiny):
    with pytest.raises(BadRequest, match="tiny-llama has no chat template"):
        tiny().chat([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_model_length": 5}, "max_model_length is no option of an LLM; did you mean max_model_len"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is no option"),
        ({"port": 1}, "port is no option of an LLM: it concerns what `actorlm up` starts"),
        ({"dp": 2}, "dp is no option of an LLM: it concerns"),
        ({"dtype": "int3"}, "dtype.*int3.*float32"),
        ({"kv_cache_tokens": 1}, "kv-cache-tokens"),
        ({"seed": 2**63}, "seed is"),
        ({"seed": "x"}, "seed is x"),
    ],
)
def test_options_are_checked_by_name(options, named):
    with pytest.raises(ConfigError, match=named):
        LLM(model_impl="null", **options)


def test_missing_kernels_are_told(tiny_directory, monkeypatch):
    def none():
        raise ConfigError("there are no compiled kernels")

    monkeypatch.setattr(native, "best_level", none)
    with pytest.warns(RuntimeWarning, match="plain torch, which is slower"), LLM(tiny_directory) as llm:
        assert llm.generate("a")[0].finished
    with pytest.raises(ConfigError, match="no compiled kernels"):
        LLM(tiny_directory, cpu_kernels="native")
    with warnings.catch_warnings(action="error"), LLM(tiny_directory, cpu_kernels="torch") as llm:
        assert llm.generate("a")[0].finished


def test_what_cannot_be_loaded_leaves_no_thread(tmp_path, tiny_directory):
    before = threading.active_count()
    with pytest.raises(ModelError, match="no model at"):
        LLM(str(tmp_path / "nothing"))
    with pytest.raises(InsufficientMemory):
        LLM(str(tiny_directory), kv_cache_tokens=2**40)
    damaged = shutil.copytree(tiny_directory, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(ModelError):
        LLM(str(damaged))
    gc.collect()
    wait_until(lambda: threading.active_count() == before)


def test_closing_frees_the_weights_and_the_threads(tiny_directory):
    before = threading.active_count()
    with LLM(tiny_directory, threads=1) as llm:
        llm.generate("a")
        runner = weakref.ref(llm._session._engine._worker._worker._runner)
        assert threading.active_count() == before + 2
    gc.collect()
    assert runner() is None
    assert threading.active_count() == before
    for call in (
        lambda: llm.generate("a"),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: llm.generate([]),
    ):
        with pytest.raises(Closed, match="this LLM is closed"):
            call()
    llm.close()


async def test_a_running_event_loop_does_not_matter(null):
    loop = asyncio.get_running_loop()
    (output,) = null().generate("a", GREEDY)
    assert output.finished
    assert asyncio.get_running_loop() is loop


def interrupt_soon(seconds):
    main = threading.main_thread().ident
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    return timer


def test_ctrl_c_aborts_and_leaves_the_llm_usable(null, oracle):
    llm = null(null_step_ms=2, max_model_len=32_768)
    for _ in range(3):
        timer = interrupt_soon(0.15)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[1], [2], [3]] * 200, LONG)
        timer.join()
        (output,) = llm.generate([[1, 2]], GREEDY)
        assert output.outputs[0].token_ids == oracle.generated([1, 2], 64)


def test_one_call_at_a_time(null):
    llm = null(null_step_ms=20)
    running = threading.Thread(target=llm.generate, args=([[1]], SamplingParams(max_tokens=20, ignore_eos=True)))
    running.start()
    wait_until(llm._session._turn.locked)
    with pytest.raises(BadRequest, match="generating already"):
        llm.generate("a")
    running.join()
    llm.generate("a")


def test_a_worker_that_failed_says_so_ever_after(null):
    llm = null()
    worker = llm._session._engine._worker._worker
    worker.execute = lambda step: 1 / 0
    for _ in range(2):
        with pytest.raises(ExecutorFailed, match="ZeroDivisionError: division by zero"):
            llm.generate("a")


def test_more_choices_than_fit_at_once(null, oracle):
    llm = null(max_num_seqs=4)
    (output,) = llm.generate([[9]], SamplingParams(n=50, seed=1, max_tokens=5))
    assert [choice.token_ids for choice in output.outputs] == [
        oracle.generated([9], 5, seed=1, choice=choice) for choice in range(50)
    ]


def imported(program):
    output = subprocess.check_output(
        [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"],
        text=True, timeout=60, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )  # fmt: skip
    return set(output.split())


def test_importing_actorlm_imports_nothing():
    assert not {"msgspec", "rich", "torch", "numpy"} & imported("import actorlm")


def test_the_null_model_needs_no_torch_no_sockets_and_no_event_loop():
    modules = imported("from actorlm import LLM; LLM(model_impl='null').generate('a', use_tqdm=False)")
    assert not {"torch", "zmq", "uvloop", "litestar", "transformers"} & modules


def test_a_name_that_is_not_there():
    import actorlm

    with pytest.raises(AttributeError, match="nothing"):
        actorlm.nothing  # noqa: B018
    assert {"LLM", "SamplingParams"} <= set(dir(actorlm))
