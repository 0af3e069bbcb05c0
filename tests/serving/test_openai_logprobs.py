"""Log-probabilities of a whole tree against transformers': as lm-eval and the `openai` package ask for them."""

import itertools

import openai
import pytest
import tiny_llama as tiny
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from tree import Tree, in_parallel

pytestmark = [pytest.mark.serving]

PROMPTS = [[72, 105, 33, 200, 7, 91], list(range(40, 110)), [256, 65], [5]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tiny.write(tmp_path_factory.mktemp("noise") / "tiny", seed=4)
    (directory / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    return directory


def ids_of(directory, text):
    return Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def reference(directory):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def logprobs(ids):
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].log_softmax(-1)

    return logprobs


@pytest.fixture(scope="module")
def tree(directory):
    with Tree("--model", directory, "--dtype", "float32", "--max-num-batched-tokens", 32) as tree:
        yield tree.wait_ready()


@pytest.fixture(scope="module")
def sdk(tree):
    with openai.OpenAI(base_url=f"{tree.url}/v1", api_key="none", max_retries=0, timeout=60) as one:
        yield one


@pytest.mark.parametrize("length", [0, 1, 3])
def test_loglikelihoods_as_lm_eval_asks_for_them(tree, sdk, reference, length):
    """C02: batches of token ids with echo; three times over, because then the prefix is cached."""
    wanted = {"model": tree.model, "prompt": PROMPTS, "echo": True, "logprobs": 1, "temperature": 0, "seed": 1}
    for _ in range(3):
        answer = sdk.completions.create(**wanted, max_tokens=length)
        assert answer.usage.completion_tokens == length * len(PROMPTS)
        for prompt, choice in zip(PROMPTS, answer.choices, strict=True):
            found = choice.logprobs
            assert len(found.tokens) == len(prompt) + length
            assert found.token_logprobs[0] is None
            rows = reference(prompt)
            expected = rows[range(len(prompt) - 1), prompt[1:]]
            assert found.token_logprobs[1 : len(prompt)] == pytest.approx(expected.tolist(), abs=1e-4)
            best = [max(top.values()) for top in found.top_logprobs[1 : len(prompt)]]
            assert best == pytest.approx(rows.max(-1).values[:-1].tolist(), abs=1e-4)
            if length:
                assert found.token_logprobs[len(prompt)] == pytest.approx(float(rows[-1].max()), abs=1e-4)


def test_generated_tokens_of_chat(tree, sdk, reference, directory):
    messages = [{"role": "user", "content": "Hi"}]
    wanted = {"model": tree.model, "messages": messages, "logprobs": True, "top_logprobs": 5, "seed": 3}
    changed = {"temperature": 1.5, "presence_penalty": 1.5, "logit_bias": {"66": 3}, "max_completion_tokens": 12}
    extra = {"ignore_eos": True, "skip_special_tokens": False, "allowed_token_ids": list(range(60, 90))}
    answer = sdk.chat.completions.create(**wanted, **changed, extra_body=extra)
    [choice] = answer.choices
    content = choice.logprobs.content
    assert b"".join(bytes(one.bytes) for one in content).decode() == choice.message.content
    prompt, ids = ids_of(directory, "Hi!"), ids_of(directory, choice.message.content)
    rows = reference([*prompt, *ids])[len(prompt) - 1 : -1]
    assert [one.logprob for one in content] == pytest.approx(rows[range(12), ids].tolist(), abs=1e-4)
    for row, one in zip(rows, content, strict=True):
        shown = [top.logprob for top in one.top_logprobs]
        assert shown == pytest.approx(row.topk(5).values.tolist(), abs=1e-4)
    stream = sdk.chat.completions.create(**wanted, **changed, extra_body=extra, stream=True)
    chunks = [chunk.choices[0].logprobs for chunk in stream]
    assert [one for part in chunks if part for one in part.content] == content


def test_generated_tokens_of_completions(tree, sdk, reference, directory):
    prompt = PROMPTS[0]
    extra = {"ignore_eos": True, "allowed_token_ids": list(range(60, 90)), "repetition_penalty": 1.3}
    wanted = {"model": tree.model, "prompt": prompt, "logprobs": 4, "seed": 3, "max_tokens": 12, "extra_body": extra}
    [choice] = sdk.completions.create(**wanted).choices
    ids = ids_of(directory, choice.text)
    rows = reference([*prompt, *ids])[len(prompt) - 1 : -1]
    assert choice.logprobs.tokens == list(choice.text)
    assert choice.logprobs.token_logprobs == pytest.approx(rows[range(12), ids].tolist(), abs=1e-4)
    for row, token, top in zip(rows, choice.logprobs.tokens, choice.logprobs.top_logprobs, strict=True):
        best = sorted((value for name, value in top.items() if name != token or len(top) == 4), reverse=True)
        assert best == pytest.approx(row.topk(4).values.tolist(), abs=1e-4)
    pieces = [chunk.choices[0].logprobs for chunk in sdk.completions.create(**wanted, stream=True)]
    assert [offset for piece in pieces if piece for offset in piece.text_offset] == list(range(12))


LIMITS = {
    "repetition_penalty": [0.01, 1.0, 100.0],
    "presence_penalty": [-2.0, 0.0, 2.0],
    "frequency_penalty": [-2.0, 0.0, 2.0],
    "temperature": [0, 1e-300, 2.0],
}


def test_c04_penalties_at_their_limits(tree):
    """Whatever is accepted gives tokens, as many as were asked for; and the same ones alone and among others."""
    fields = [dict(zip(LIMITS, values, strict=True)) for values in itertools.product(*LIMITS.values())]
    fields = [one | {"prompt": PROMPTS[1], "max_tokens": 20, "ignore_eos": True, "seed": 7} for one in fields]
    together = in_parallel([lambda one=one: tree.complete(**one) for one in fields])
    for one, body in zip(fields, together, strict=True):
        assert not isinstance(body, Exception), (one, body)
        assert body["usage"]["completion_tokens"] == 20
    for one, body in list(zip(fields, together, strict=True))[::9]:
        assert tree.complete(**one)["choices"] == body["choices"]
    tree.settled()


def test_bad_words_and_allowed_tokens(tree, directory):
    extra = {
        "allowed_token_ids": ids_of(directory, "abc"),
        "ignore_eos": True,
        "temperature": 2.0,
        "max_tokens": 60,
        "seed": 1,
    }
    plain = tree.text([65], **extra)
    assert "ab" in plain
    assert "c" in plain
    assert set(plain) == set("abc")
    held = tree.text([65], **extra, bad_words=["ab", "c"])
    assert "ab" not in held
    assert set(held) == set("ab")


def test_they_cross_processes_too(tree_of):
    """Prompts in chunks of 8 and several replicas, frontends and detokenizers give what one process gives."""
    many = ("--executor", "broadcast", "--dp", 2, "--frontends", 2, "--detokenizers", 2, "--max-num-batched-tokens", 8)
    fields = {
        "prompt": PROMPTS,
        "echo": True,
        "logprobs": 3,
        "n": 2,
        "seed": 5,
        "max_tokens": 6,
        "presence_penalty": 1.0,
    }
    one, other = (tree_of("--model-impl", "null", *options).complete(**fields) for options in ((), many))
    assert other["choices"] == one["choices"]
    assert len(one["choices"][2]["logprobs"]["tokens"]) == len(PROMPTS[1]) + 6
