"""C19, C25, B14: token ids, continuous usage, salts, priorities and the model's defaults, through whole trees."""

import json
import threading

import pytest
import tiny_llama as tiny
from exchange import PATHS
from null_model import decoded, generated
from refusals import error_of, refused
from tree import Tree, until

from actorlm.scheduling.policy import AGEING_STEPS

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

COMPLETIONS, CHAT = PATHS
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def urgent_tree():
    """One slot, so that who comes next shows."""
    with Tree(
        "--model-impl", "null", "--null-step-ms", "20", "--max-num-seqs", "1", "--scheduling-policy", "priority"
    ) as tree:
        yield tree.wait_ready()


def test_a_conversation_is_tokenized_as_it_is_generated_from(null_tree):
    told = null_tree.post("/tokenize", {"messages": HI, "return_token_strs": True}).json()
    answer = null_tree.chat("hi", max_tokens=3, return_token_ids=True)
    assert told["tokens"] == answer["prompt_token_ids"]
    assert told["count"] == answer["usage"]["prompt_tokens"] == len(told["token_strs"])
    assert told["max_model_len"] == 32_768
    text = null_tree.post("/detokenize", {"tokens": told["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert null_tree.post("/tokenize", {"prompt": text}).json()["tokens"] == told["tokens"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [259]}),
        ("/detokenize", {"tokens": [2**64]}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"prompt": "x" * 10_000_000}),
        ("/tokenize", {"prompt": "\ud800"}),
    ],
)
def test_c25_what_cannot_be_tokenized(null_tree, path, body):
    answer = null_tree.client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    error_of(answer)
    null_tree.sentinel()


def test_token_ids_are_those_that_were_generated(null_tree):
    ids = [generated(list(b"abc"), 9, seed=5, choice=choice) for choice in range(2)]
    body = {"prompt": "abc", "n": 2, "seed": 5, "max_tokens": 9, "return_token_ids": True, "temperature": 1}
    whole = null_tree.complete(**body)["choices"]
    assert [choice["token_ids"] for choice in whole] == ids
    assert [choice["prompt_token_ids"] for choice in whole] == [list(b"abc")] * 2
    streamed = [[], []]
    for event in null_tree.events(COMPLETIONS, body):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["token_ids"]
    assert streamed == ids


def test_a_continued_message_is_the_prompts_end(null_tree):
    messages = [*HI, {"role": "assistant", "content": "Once "}]
    body = {"model": null_tree.model, "messages": messages, "continue_final_message": True, "max_tokens": 5, "seed": 1}
    answer = null_tree.post(CHAT, body | {"return_token_ids": True}).json()
    prompt = b"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nOnce "
    assert decoded(answer["prompt_token_ids"], skip_special_tokens=False).encode() == prompt


def test_c14_a_prompt_that_is_cut_fits(null_tree):
    ids = [one % 250 for one in range(40_000)]
    answer = null_tree.complete(ids, truncate_prompt_tokens=-1, max_tokens=7, ignore_eos=True, return_token_ids=True)
    assert answer["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 32_761, "completion_tokens": 7, "total_tokens": 32_768, "prompt_tokens_details": None
    }  # fmt: skip
    assert answer["choices"][0]["prompt_token_ids"] == ids[-32_761:]
    assert null_tree.complete("x" * 1_000_000, truncate_prompt_tokens=9)["usage"]["prompt_tokens"] == 9


@pytest.mark.parametrize("path", PATHS)
def test_b14_continuous_usage_ends_as_the_whole_answer_has_it(null_tree, path):
    prompt = {"prompt": ["a" * 40, "b"]} if path == COMPLETIONS else {"messages": HI}
    body = prompt | {"n": 2, "seed": 3, "max_tokens": 12}
    whole = null_tree.post(path, {"model": null_tree.model} | body).json()["usage"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    usages = [event["usage"] for event in null_tree.events(path, body | {"stream_options": options})]
    assert all(usage["prompt_tokens"] == whole["prompt_tokens"] for usage in usages)
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts)
    assert counts[-1] == whole["completion_tokens"]


def test_e19_prefixes_are_shared_only_under_one_salt(null_tree):
    def cached(**fields):
        usage = null_tree.complete("salted " * 40, max_tokens=1, **fields)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [cached(), cached(cache_salt="a"), cached(cache_salt="b")] == [0, 0, 0]
    assert min(cached(), cached(cache_salt="a"), cached(cache_salt="b")) > 200


def test_priorities_are_refused_by_name_where_nobody_looks_at_them(null_tree):
    for path, prompt in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HI})):
        assert "--scheduling-policy" in refused(null_tree, path, prompt | {"priority": 1})["message"]
        assert null_tree.post(path, {"model": null_tree.model, "priority": 0} | prompt).status_code == 200


def test_d11_the_urgent_go_first(urgent_tree):
    tree, order = urgent_tree, []

    def ask(priority):
        tree.complete("x", max_tokens=5, ignore_eos=True, priority=priority)
        order.append(priority)

    threads = [threading.Thread(target=tree.complete, args=("x",), kwargs={"max_tokens": 100, "ignore_eos": True})]
    threads[0].start()
    until(lambda: tree.total("num_requests_running") == 1, 5)
    for waiting, priority in enumerate([3, 0, -2, 1], 1):
        threads.append(threading.Thread(target=ask, args=(priority,)))
        threads[-1].start()
        until(lambda waiting=waiting: tree.total("num_requests_waiting") == waiting, 5)
    for thread in threads:
        thread.join(60)
    assert order == [-2, 0, 1, 3]


def test_d11_who_yields_to_others_without_end_has_its_turn_within_the_bound(urgent_tree):
    """There is always somebody of a higher level who waits; each holds the slot for eight steps at least."""
    tree, order, over = urgent_tree, [], threading.Event()

    def ask_on():
        while not over.is_set():
            tree.complete("x", max_tokens=8, ignore_eos=True, priority=0)
            order.append("high")

    highs = [threading.Thread(target=ask_on) for _ in range(4)]
    for thread in highs:
        thread.start()
    try:
        until(lambda: tree.total("num_requests_waiting") == 3, 10)
        began = len(order)
        tree.complete("x", max_tokens=1, priority=1)
        passed = len(order) - began
    finally:
        over.set()
        for thread in highs:
            thread.join(60)
    assert 10 < passed <= AGEING_STEPS / 8 + len(highs) + 1, "it passes those who come more than a level's age later"


@pytest.mark.parametrize("priority", [-(2**63), 2**63, -1001, 1001, 1.5, "x", True, [], {}])
def test_d11_what_is_no_priority(urgent_tree, priority):
    for path, prompt in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HI})):
        assert refused(urgent_tree, path, prompt | {"priority": priority})["param"] == "priority"


def test_d11_the_highest_and_the_lowest(urgent_tree):
    for priority in (-1000, 1000, None):
        assert urgent_tree.complete("x", max_tokens=1, priority=priority)["usage"]["completion_tokens"] == 1


def test_the_models_recommendation_holds_unless_it_is_turned_off(tmp_path, start):
    directory = tiny.write(tmp_path / "tiny", seed=1)
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.0}))
    fields = {"max_tokens": 16, "ignore_eos": True, "skip_special_tokens": False}
    with Tree("--model", directory, "--generation-config", "none") as plain:
        plain.wait_ready()
        texts = {plain.text("abc", seed=seed, **fields) for seed in range(4)}
        greedy = plain.text("abc", temperature=0, **fields)
    assert len(texts) > 1
    recommended = start("--model", directory)
    assert {recommended.text("abc", seed=seed, **fields) for seed in range(4)} == {greedy}
    assert recommended.text("abc", temperature=1, seed=0, **fields) in texts


TEMPLATE = """{% if thinking %}T{% endif %}{% for one in documents or [] %}[{{ one.text }}]{% endfor -%}
{% for message in messages %}{{ message.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"""


def test_e11_a_template_gets_what_it_mentions_and_nothing_reserved(tmp_path, start):
    directory = tiny.write(tmp_path / "tiny")
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    tree = start("--model", directory)

    def prompt(**fields):
        answer = tree.chat("hi", max_tokens=1, return_token_ids=True, **fields)
        told = tree.post("/tokenize", {"messages": HI} | fields).json()["tokens"]
        assert answer["prompt_token_ids"] == told
        return tree.post("/detokenize", {"tokens": told}).json()["prompt"]

    assert prompt() == "hi>"
    assert prompt(add_generation_prompt=False) == prompt(continue_final_message=True) == "hi"
    assert prompt(chat_template_kwargs={"thinking": True, "other": [1]}) == "Thi>"
    assert prompt(documents=[{"text": "a"}, {"text": "b"}]) == "[a][b]hi>"
    for name in ("messages", "documents", "add_generation_prompt", "chat_template", "range"):
        error = refused(tree, CHAT, {"messages": HI, "chat_template_kwargs": {name: "x"}})
        assert error["param"] == "chat_template_kwargs"
        assert name in error["message"]
    tree.sentinel()
