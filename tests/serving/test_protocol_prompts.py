"""C01, C03, C10, C12-C15, C18: prompts of every form, and of lengths at every limit, through whole trees."""

import itertools

import pytest
import tiny_llama as tiny
from exchange import PATHS
from null_model import answer, bias, decoded, generated
from refusals import error_of, refused
from tree import Tree, in_parallel

pytestmark = [pytest.mark.serving, pytest.mark.timeout(300)]

COMPLETIONS, CHAT = PATHS
HI = [{"role": "user", "content": "hi"}]
L = 48
"""max_model_len of `short_tree`."""
LETTERS = range(97, 123)


@pytest.fixture(scope="module")
def bos_tree(tmp_path_factory):
    """A real model, tiny, whose tokenizer begins every text with a token of its own."""
    directory = tiny.write(tmp_path_factory.mktemp("bos") / "tiny-bos", seed=1, adds_bos=True)
    with Tree("--model", directory) as tree:
        yield tree.wait_ready()


@pytest.fixture(scope="module")
def short_tree():
    with Tree("--model-impl", "null", "--max-model-len", L) as tree:
        yield tree.wait_ready()


# C01.


@pytest.mark.parametrize(
    "prompt", ["", [""], [], [[]], None, [""] * 3, ["a", ""], [[1], []], {}, 1, True, [None], [[""]], [[[1]]]]
)
def test_c01_empty_prompts(null_tree, prompt):
    assert refused(null_tree, COMPLETIONS, {"prompt": prompt})["param"].startswith("prompt")
    null_tree.sentinel()


def test_c01_no_prompt_at_all(null_tree):
    assert refused(null_tree, COMPLETIONS, {})["param"] == "prompt"
    assert refused(null_tree, CHAT, {})["param"] == "messages"
    for messages in ([], None, {}, "hi", [None], [{}]):
        assert refused(null_tree, CHAT, {"messages": messages})["param"].startswith("messages")
    null_tree.sentinel()


def test_c01_with_a_token_that_begins_every_text(bos_tree):
    """The empty text is that token alone; a list of no ids is still nothing."""
    for prompt, lengths in (("", 1), ([""], 1), (["", ""], 2), ("a", 2)):
        body = bos_tree.complete(prompt, max_tokens=2, temperature=0, ignore_eos=True)
        assert body["usage"]["prompt_tokens"] == lengths
        assert body["usage"]["completion_tokens"] == 2 * len(body["choices"])
    for prompt in ([], [[]], [[1], []]):
        assert refused(bos_tree, COMPLETIONS, {"prompt": prompt})["param"].startswith("prompt")
    assert "chat template" in error_of(bos_tree.post(CHAT, {"model": bos_tree.model, "messages": HI}))["message"]


def test_c01_an_empty_message_is_a_message(null_tree):
    assert null_tree.chat("", max_tokens=2)["usage"]["prompt_tokens"] > 0


# C03.

NO_IDS = [259, -1, 999_999_999, 2**31, 2**63, 2**64, -(2**63), 1.0, None]
NO_KEYS = ["191222", "259", "-1", "abc", "", "1_0", "+5", " 5", "05", "\u0665", "5.0", "0x5", "9" * 5000]
NO_BIASES = [1e9, -101, "NaN", None, True]
TOO_MANY = {str(key): 1 for key in range(2000)}
BAD_IDS = {
    "prompt": [*([one] for one in NO_IDS), [1, 259], [[1], [259]], ["1", 1], [[1], [None]]],
    "logit_bias": [*({key: 1} for key in NO_KEYS), *({"5": value} for value in NO_BIASES), [], "x", TOO_MANY],
    "stop_token_ids": [*([one] for one in NO_IDS), ["5"], "5", 5, {}, list(range(129))],
    "allowed_token_ids": [[], *([one] for one in NO_IDS), [1, 259], "5", 5, {}],
    "bad_words_ids": [[[1]]],
}


@pytest.mark.parametrize(
    ("field", "index"), [(field, index) for field, values in BAD_IDS.items() for index in range(len(values))]
)
def test_c03_ids_outside_the_vocabulary(null_tree, field, index):
    value = BAD_IDS[field][index]
    before = null_tree.total("requests_accepted_total")
    for path, about in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HI})):
        if field == "prompt" and path == CHAT:
            continue
        error = refused(null_tree, path, about | {field: value, "min_tokens": 1})
        assert error["param"].startswith(field)
    assert null_tree.total("requests_accepted_total") == before
    null_tree.sentinel()


def test_c03_the_last_id_is_accepted(null_tree, bos_tree):
    for tree, last in ((null_tree, 258), (bos_tree, 257)):
        body = tree.complete(
            [last, 0, last],
            max_tokens=3,
            logit_bias={str(last): -100, "65": 100},
            stop_token_ids=[last],
            ignore_eos=True,
        )
        assert body["choices"][0]["text"] == 3 * body["choices"][0]["text"][0]
        assert (
            tree.text([65], max_tokens=2, logit_bias={str(last): 100}, ignore_eos=True, skip_special_tokens=False) != ""
        )


# C10.

HO = {"role": "user", "content": "ho"}
CALLS = {"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
EMPTY_PART = {"type": "text", "text": ""}
NOTHING = [
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": None}],
    [{"role": "user"}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [EMPTY_PART]}],
    [{"role": "system", "content": None}, *HI],
    [*HI, {"role": "assistant", "content": ""}, HO],
    [*HI, {"role": "assistant", "content": None} | CALLS, {"role": "tool", "tool_call_id": "c1", "content": "x"}],
    [*HI, {"role": "assistant"} | CALLS, {"role": "tool", "tool_call_id": "c1", "content": [EMPTY_PART, EMPTY_PART]}],
    [*HI, {"role": "assistant", "refusal": "no"}, {"role": "user", "content": None, "name": None}],
]


def chatml(messages):
    """The prompt by the byte vocabulary's template: 4 tokens and the role a turn, and what begins an answer."""

    def text(message):
        content = message.get("content") or message.get("refusal") or ""
        return content if isinstance(content, str) else "\n".join(part["text"] for part in content)

    lengths = [1 + len(message["role"]) + 1 + len(text(message).encode()) + 1 + 1 for message in messages]
    return sum(lengths) + 1 + len("assistant\n")


@pytest.mark.parametrize("index", range(len(NOTHING)))
def test_c10_content_that_is_nothing_is_no_text(null_tree, index):
    """Had the template written "None", the prompt would be four tokens longer."""
    messages = NOTHING[index]
    body = null_tree.post(CHAT, {"model": null_tree.model, "messages": messages, "max_tokens": 1})
    assert body.status_code == 200, body.text
    assert body.json()["usage"]["prompt_tokens"] == chatml(messages)


def test_c10_with_the_template_of_a_real_model(smollm2):
    """SmolLM2's template brings a system message of its own, unless there is one."""
    counts = []
    for content in ("", None, []):
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": content}]
        body = smollm2.post(CHAT, {"model": smollm2.model, "messages": messages, "max_tokens": 1})
        assert body.status_code == 200, body.text
        counts.append(body.json()["usage"]["prompt_tokens"])
    assert len(set(counts)) == 1


# C13, C14, C15.


def lengths(tree, path, **fields):
    about = {"prompt": "x"} if path == COMPLETIONS else {"messages": HI}
    body = tree.post(path, {"model": tree.model, "ignore_eos": True} | about | fields)
    assert body.status_code == 200, body.text
    usage = body.json()["usage"]
    reasons = {choice["finish_reason"] for choice in body.json()["choices"]}
    return usage["prompt_tokens"], usage["completion_tokens"], reasons


def test_c13_max_completion_tokens_is_the_newer_name(short_tree):
    assert lengths(short_tree, CHAT, max_completion_tokens=3)[1:] == (3, {"length"})
    assert lengths(short_tree, CHAT, max_tokens=3)[1:] == (3, {"length"})
    assert lengths(short_tree, CHAT, max_completion_tokens=3, max_tokens=3)[1:] == (3, {"length"})
    error = refused(short_tree, CHAT, {"messages": HI, "max_completion_tokens": 3, "max_tokens": 4})
    assert error["param"] in ("max_tokens", "max_completion_tokens")
    assert "max_completion_tokens (3)" in error["message"]
    assert "max_tokens (4)" in error["message"]
    assert (
        refused(short_tree, COMPLETIONS, {"prompt": "x", "max_completion_tokens": 3})["param"]
        == "max_completion_tokens"
    )


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("wanted", [L - 1, L, 10_000, 2**31, 2**63 - 1])
def test_c13_more_than_the_room_left_is_cut_to_it(short_tree, field, wanted):
    prompt, generated_tokens, reasons = lengths(short_tree, CHAT, **{field: wanted})
    assert (prompt + generated_tokens, reasons) == (L, {"length"})
    if field == "max_tokens":
        assert lengths(short_tree, COMPLETIONS, max_tokens=wanted) == (1, L - 1, {"length"})


@pytest.mark.parametrize("limit", [{"max_tokens": 1}, {}, {"max_tokens": 500}])
@pytest.mark.parametrize("form", ["text", "ids"])
def test_c14_prompts_at_the_limit(short_tree, form, limit):
    def prompt(length):
        return "x" * length if form == "text" else [120] * length

    assert lengths(short_tree, COMPLETIONS, prompt=prompt(L - 1), **limit) == (L - 1, 1, {"length"})
    assert lengths(short_tree, COMPLETIONS, prompt=prompt(L - 2), **limit)[1] == min(limit.get("max_tokens", 16), 2)
    steps = short_tree.total("engine_steps_total")
    for length in (L, L + 1, 100 * L, 1_000_000):
        error = refused(short_tree, COMPLETIONS, {"prompt": prompt(length)} | limit)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert str(L) in error["message"]
    assert short_tree.total("engine_steps_total") == steps


def test_c14_a_chat_at_the_limit(short_tree):
    overhead = short_tree.chat("", max_tokens=1)["usage"]["prompt_tokens"]
    for limit in ({"max_tokens": 1}, {}):
        assert lengths(short_tree, CHAT, messages=[{"role": "user", "content": "x" * (L - 1 - overhead)}], **limit) == (
            L - 1,
            1,
            {"length"},
        )
        for length in (L - overhead, L, 100_000):
            error = refused(short_tree, CHAT, {"messages": [{"role": "user", "content": "x" * length}]} | limit)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


def test_c14_one_prompt_of_many_is_too_long(short_tree):
    before = short_tree.total("requests_accepted_total")
    error = refused(short_tree, COMPLETIONS, {"prompt": ["x", "x" * L, "x"]})
    assert error["code"] == "context_length_exceeded"
    assert short_tree.total("requests_accepted_total") == before


def test_c14_the_shortest_context():
    with Tree("--model-impl", "null", "--max-model-len", 2) as tree:
        tree.wait_ready()
        assert lengths(tree, COMPLETIONS, prompt=[1]) == (1, 1, {"length"})
        assert refused(tree, COMPLETIONS, {"prompt": [1, 1]})["code"] == "context_length_exceeded"
        assert refused(tree, CHAT, {"messages": HI})["code"] == "context_length_exceeded"


def test_c15_without_max_tokens(short_tree):
    assert lengths(short_tree, COMPLETIONS) == (1, 16, {"length"})
    prompt, generated_tokens, reasons = lengths(short_tree, CHAT)
    assert (prompt + generated_tokens, reasons) == (L, {"length"})
    assert lengths(short_tree, COMPLETIONS, max_tokens=None) == (1, 16, {"length"})
    assert lengths(short_tree, CHAT, max_tokens=None, max_completion_tokens=None)[0] + generated_tokens == L


# C18.


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("s", [[115]]),
        (["a", "b"], [[97], [98]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["z", "", "a"][::2], [[122], [97]]),
        ([[256], [257, 258]], [[256], [257, 258]]),
        (["\u00e9\U0001f600", "<|im_start|>"], [list("\u00e9\U0001f600".encode()), [257]]),
    ],
)
def test_c18_forms_of_a_prompt(null_tree, prompt, ids, n):
    """Choices come in the order of the prompts, each with its own prompt's answer; echo gives the text back."""
    fields = {"seed": 5, "max_tokens": 6, "logit_bias": bias(LETTERS), "skip_special_tokens": False, "echo": True}
    body = null_tree.complete(prompt, n=n, **fields)
    assert [choice["index"] for choice in body["choices"]] == list(range(n * len(ids)))
    expected = [
        decoded([*one, *generated(one, 6, seed=5, choice=choice, among=LETTERS)], skip_special_tokens=False)
        for one, choice in itertools.product(ids, range(n))
    ]
    assert [choice["text"] for choice in body["choices"]] == expected
    assert body["usage"]["prompt_tokens"] == sum(map(len, ids))


@pytest.mark.parametrize(
    "prompt",
    [["a", [1]], [1, "a"], [[1], 2], [[1], "a"], [["a"]], [[1, "a"]], [1, None], ["a", None], [1, [2]], [True]],
)
def test_c18_mixtures(null_tree, prompt):
    assert refused(null_tree, COMPLETIONS, {"prompt": prompt})["param"].startswith("prompt")


def test_c18_many_prompts_keep_their_order(null_tree):
    prompts = [[index % 256, index // 256] for index in range(1000)]
    body = null_tree.complete(prompts, max_tokens=2, temperature=0, ignore_eos=True)
    assert [choice["text"] for choice in body["choices"]] == [decoded(generated(one, 2, ends=())) for one in prompts]


def test_c18_forms_beside_each_other(null_tree):
    jobs = [lambda i=i: null_tree.complete([[i], [i + 1]], max_tokens=3, temperature=0) for i in range(40)]
    for i, body in enumerate(in_parallel(jobs)):
        assert [choice["text"] for choice in body["choices"]] == [answer([i], 3), answer([i + 1], 3)]
