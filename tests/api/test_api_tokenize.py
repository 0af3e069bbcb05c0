"""`/tokenize` and `/detokenize` as a client sees them."""

import pytest
from fake_backend import BOS, CONTEXT, VOCAB_SIZE

MESSAGES = [{"role": "user", "content": "Hi"}]


async def test_a_text(client):
    answer = await client.post("/tokenize", json={"prompt": "Hi"})
    assert answer.status_code == 200
    assert answer.json() == {"count": 3, "max_model_len": CONTEXT, "tokens": [BOS, 72, 105], "token_strs": None}
    plain = await client.post("/tokenize", json={"model": "org/fake", "prompt": "Hi", "add_special_tokens": False})
    assert plain.json()["tokens"] == [72, 105]


async def test_token_strs_are_those_of_the_vocabulary(client):
    answer = await client.post("/tokenize", json={"prompt": "Hi", "return_token_strs": True})
    assert answer.json()["token_strs"] == [f"<{BOS}>", "<72>", "<105>"]


async def test_a_conversation(client, backend):
    answer = await client.post("/tokenize", json={"messages": MESSAGES})
    assert answer.json()["count"] == 3
    fields = {
        "continue_final_message": True, "chat_template_kwargs": {"a": 1}, "documents": [{"text": "x"}],
        "add_special_tokens": True,
    }  # fmt: skip
    await client.post("/tokenize", json={"messages": MESSAGES, **fields})
    first, second = backend.renderings
    assert (first.add_generation_prompt, first.continue_final_message, first.add_special_tokens) == (True, False, False)
    assert (second.add_generation_prompt, second.continue_final_message) == (False, True)
    assert (second.variables, second.documents, second.add_special_tokens) == ({"a": 1}, [{"text": "x"}], True)
    assert not backend.generations


async def test_a_detokenized_text(client):
    answer = await client.post("/detokenize", json={"tokens": [72, 105]})
    assert (answer.status_code, answer.json()) == (200, {"prompt": "Hi"})
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_another_model_is_404(client, path):
    body = {"model": "other", "prompt": "x"} if path == "/tokenize" else {"model": "other", "tokens": [1]}
    answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {}, "tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": "x", "documents": []}, "documents"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "x" * 101 * CONTEXT}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "nope": 1}, "nope"),
        (
            "/tokenize",
            {"messages": MESSAGES, "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
    ],
)
async def test_c25_what_cannot_be_tokenized(client, path, body, param):
    answer = await client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
