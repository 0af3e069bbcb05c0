"""Our OpenAPI document is complete and honest."""

import re

import pytest
from fake_backend import make_client

from actorlm.api.fields import CHAT, COMPLETION
from actorlm.config import HttpConfig

PATHS = {
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model}",
    "/tokenize", "/detokenize", "/health", "/ready", "/version", "/metrics",
}  # fmt: skip


@pytest.fixture
async def document(client):
    answer = await client.get("/schema/openapi.json")
    assert answer.status_code == 200
    return answer.json()


async def test_every_route_is_documented(document):
    assert set(document["paths"]) == PATHS


async def test_every_reference_leads_somewhere(document):
    names = re.findall(r"'#/components/schemas/(\w+)'", str(document))
    assert names
    assert set(names) <= set(document["components"]["schemas"])


async def test_every_error_has_openais_shape(document):
    for path in document["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                if status != "200":
                    (media,) = answer["content"].values()
                    assert media["schema"] == {"$ref": "#/components/schemas/ErrorResponse"}, (operation, status)


async def test_generating_routes_have_two_forms_of_answer(document):
    for path in ("/v1/chat/completions", "/v1/completions"):
        operation = document["paths"][path]["post"]
        assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
        assert set(operation["requestBody"]["content"]) == {"application/json"}


async def test_requests_state_bounds_and_close_their_fields(document):
    schemas = document["components"]["schemas"]
    for name, table in (("ChatCompletionRequest", CHAT), ("CompletionRequest", COMPLETION)):
        assert set(schemas[name]["properties"]) == set(table)
        assert schemas[name]["additionalProperties"] is False
        assert schemas[name]["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
        for field, treated in table.items():
            assert treated.note in schemas[name]["properties"][field]["description"]


async def test_a_key_is_documented_where_there_is_one(document, backend):
    assert "securitySchemes" not in document["components"]
    async with make_client(backend, HttpConfig(api_key="k")) as client:
        answer = await client.get("/schema/openapi.json", headers={"authorization": "Bearer k"})
    assert answer.json()["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
