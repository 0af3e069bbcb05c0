"""What the client over ZeroMQ is answered: what HTTP is answered, and what the null model must say."""

import asyncio
import random

import null_model
import pytest
from answers import whole
from asking import ENDLESS, address, connected, read
from exchange import PATHS, body_of
from hostile import Assailant, bound_sockets
from zmq import DEALER

from actorlm import Client, SamplingParams
from actorlm.errors import ActorlmError

pytestmark = [pytest.mark.serving]

COMPLETIONS, CHAT = PATHS
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "日本 🌶️"}]


@pytest.mark.parametrize("seed", [0, 1, -5, 2**63 - 1])
@pytest.mark.parametrize("prompt", [[1], [65, 66, 67], "héllo 👩‍🚀", "x" * 500])
async def test_ids_are_those_of_the_oracle_and_texts_those_of_http(null_tree, prompt, seed):
    fields = {"prompt": prompt, "seed": seed, "max_tokens": 40, "n": 2}
    over_http = whole(null_tree, COMPLETIONS, **fields)
    async with connected(null_tree) as client:
        answer = await read(client.generate(**fields))
    prompt_ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    assert answer.ids == [null_model.generated(prompt_ids, 40, seed=seed, choice=choice) for choice in (0, 1)]
    assert (answer.texts, answer.reasons) == (over_http.texts, over_http.reasons)
    assert answer.usage.prompt_tokens == over_http.usage["prompt_tokens"]
    assert answer.usage.completion_tokens == over_http.usage["completion_tokens"]


FIELDS = {
    "greedy": {"temperature": 0},
    "a stop string": {"logit_bias": null_model.bias(b"A"), "stop": ["AAA"], "ignore_eos": True},
    "one that stays": {
        "logit_bias": null_model.bias(b"A"),
        "stop": "AAA",
        "include_stop_str_in_output": True,
    },
    "stop ids": {"stop_token_ids": list(range(60))},
    "special tokens": {"skip_special_tokens": False, "logit_bias": null_model.bias([256]), "ignore_eos": True},
    "no end before": {"min_tokens": 29},
    "five choices": {"n": 5},
}


@pytest.mark.parametrize("what", FIELDS)
async def test_every_field_does_what_it_does_over_http(null_tree, what):
    fields = {"seed": 11, "max_tokens": 30} | FIELDS[what]
    async with connected(null_tree) as client:
        for path, answer in (
            (COMPLETIONS, await read(client.generate("Hi", **fields))),
            (CHAT, await read(client.chat([{"role": "user", "content": "Hi"}], **fields))),
        ):
            over_http = whole(null_tree, path, prompt="Hi", **fields)
            assert (answer.texts, answer.reasons) == (over_http.texts, over_http.reasons)
            assert answer.usage.completion_tokens == over_http.usage["completion_tokens"]
            assert answer.usage.prompt_tokens == over_http.usage["prompt_tokens"]


async def test_b28_prompts_times_choices(null_tree):
    prompts = ["a", "bb", "日本"]
    async with connected(null_tree) as client:
        answer = await read(client.generate(prompts, n=2, seed=7, max_tokens=9, ignore_eos=True))
    assert answer.ids == [
        null_model.generated(list(prompt.encode()), 9, seed=7, choice=choice, ends=())
        for prompt in prompts
        for choice in range(2)
    ]


async def test_sampling_params_say_all_that_they_say(null_tree):
    params = SamplingParams(max_tokens=30, seed=5, logit_bias={65: 100.0, 66: 100.0}, ignore_eos=True, min_p=0.1)
    async with connected(null_tree) as client:
        answer = await read(client.generate([1, 2], params))
        assert answer.ids == [null_model.generated([1, 2], 30, seed=5, among=(65, 66), ends=())]
        assert (await read(client.generate([1, 2], params, max_tokens=3))).ids == [answer.ids[0][:3]]
        assert (
            len((await read(client.generate([1] * 32_700, SamplingParams(max_tokens=None, ignore_eos=True)))).ids[0])
            == 68
        )


async def test_log_probabilities_are_those_of_http(null_tree):
    fields = {"prompt": [1, 2, 3], "seed": 4, "max_tokens": 12, "logprobs": 3, "ignore_eos": True}
    described = null_tree.complete(**fields)["choices"][0]["logprobs"]
    async with connected(null_tree) as client:
        answer = await read(client.generate(**fields))
        assert [entry.token for entry in answer.scores[0]] == answer.ids[0]
        assert [entry.logprob for entry in answer.scores[0]] == pytest.approx(described["token_logprobs"])
        assert {len(entry.others) for entry in answer.scores[0]} == {3}
        turns = [{"role": "user", "content": "Hi"}]
        answer = await read(client.chat(turns, max_tokens=5, logprobs=True, top_logprobs=2, ignore_eos=True))
        assert [entry.token for entry in answer.scores[0]] == answer.ids[0]
        assert {len(entry.others) for entry in answer.scores[0]} == {2}
        assert not (await read(client.generate([1], max_tokens=2))).scores[0]


WRONG = [
    {"temperature": -1},
    {"temperature": "hot"},
    {"max_tokens": -1},
    {"min_tokens": 9, "max_tokens": 3},
    {"prompt": [259]},
    {"prompt": ""},
    {"prompt": ["a", 1]},
    {"prompt": "x" * 10_000_000},
    {"logit_bias": {"259": 1}},
    {"logit_bias": {"5": 1e9}},
    {"stop": [""]},
    {"stop_token_ids": [1] * 129},
    {"model": "nobody"},
    {"no_such_field": 1},
    {"n": 0},
    {"seed": 2**64},
]


@pytest.mark.parametrize("fields", WRONG, ids=lambda fields: next(iter(fields)))
async def test_c04_errors_are_those_of_http(null_tree, fields):
    fields = {"prompt": "x"} | fields
    response = null_tree.post(COMPLETIONS, body_of(null_tree, COMPLETIONS) | fields)
    described = response.json()["error"]
    async with connected(null_tree) as client:
        with pytest.raises(ActorlmError) as caught:
            await read(client.generate(**fields))
    error = caught.value
    assert (error.status, error.type, error.code, error.param, error.message) == (
        response.status_code, described["type"], described["code"], described["param"], described["message"],
    )  # fmt: skip


@pytest.mark.parametrize("messages", [[], [{"role": "nobody", "content": "x"}], [{"content": "x"}], "x", [None]])
async def test_c04_errors_of_a_conversation(null_tree, messages):
    response = null_tree.post(CHAT, {"model": null_tree.model, "messages": messages})
    async with connected(null_tree) as client:
        with pytest.raises(ActorlmError) as caught:
            await read(client.chat(messages))
    assert (caught.value.status, caught.value.message) == (400, response.json()["error"]["message"])


async def test_c14_a_request_that_is_too_large_for_a_message(null_tree):
    async with connected(null_tree) as client:
        with pytest.raises(ActorlmError) as caught:
            await read(client.generate("x" * (20 << 20)))
        assert caught.value.code == "request_too_large"
        await read(client.generate("x", max_tokens=1))


# Many at once.


@pytest.fixture(scope="module")
def stepping_tree(tree_of):
    return tree_of("--model-impl", "null", "--null-step-ms", 2, "--frontends", 2)


async def ask(client, number):
    """One request of a number, which nobody else may be answered."""
    answer = await read(client.generate([number % 256, number // 256], seed=number, max_tokens=40, ignore_eos=True))
    assert answer.ids == [null_model.generated([number % 256, number // 256], 40, seed=number, ends=())]


async def test_b33_300_requests_on_one_connection(stepping_tree):
    async with connected(stepping_tree) as client:
        await asyncio.gather(*(ask(client, number) for number in range(300)))
    stepping_tree.settled()


async def test_b33_two_clients_and_two_frontends_at_once(stepping_tree):
    """A third of the requests are left in the middle."""
    chance = random.Random(3)
    async with connected(stepping_tree) as one, Client(address(stepping_tree, 1)) as other:

        async def leave(client, number):
            async for _ in client.generate([number % 256], seed=number, **ENDLESS):
                if chance.random() < 0.3:
                    break

        await asyncio.gather(
            *((ask if number % 3 else leave)((one, other)[number % 2], number) for number in range(240))
        )
    stepping_tree.settled()


async def test_e04_hostile_frames_beside_requests(stepping_tree):
    path = bound_sockets(stepping_tree)["frontend-0"]
    before = stepping_tree.processes().keys()
    assailant = Assailant()
    noise = [[bytes([number]) * 24, b"\x91" * 1000] for number in range(256)] * 20
    async with connected(stepping_tree) as client:
        asked = asyncio.gather(*(ask(client, number) for number in range(200)))
        for identity in (None, client._actor.name.encode(), b"client-1/1"):
            await asyncio.to_thread(assailant.send, path, DEALER, noise, identity)
        await asked
    assailant.close()
    assert stepping_tree.processes().keys() == before
    stepping_tree.settled()


def test_the_default_model(smollm2, golden):
    """Greedy ids of the real model, as transformers computes them."""

    async def ask_all():
        async with connected(smollm2) as client:
            for item in golden[:3]:
                answer = await read(client.generate(item["prompt_ids"], temperature=0, max_tokens=16))
                assert answer.ids[0] == item["greedy_ids"][: len(answer.ids[0])]

    asyncio.run(ask_all())
