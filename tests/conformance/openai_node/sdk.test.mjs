// The `openai` package as people use it, against the server that OPENAI_BASE_URL and OPENAI_API_KEY name: a tree of the null
// model, whose tokens are bytes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout } from "node:timers/promises";
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0, timeout: 60_000 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "system", content: "Be brief." }, { role: "user", content: "Hi" }];
const printable = only(String.fromCharCode(...Array.from({ length: 95 }, (_, index) => 32 + index)));
const chat = { model, messages, seed: 5, max_tokens: 30, logit_bias: printable };
const completion = { model, prompt: "Hi", seed: 3, max_tokens: 12, logit_bias: printable };
const endless = { model, stream: true, max_tokens: 4000, ignore_eos: true };

/** Leaves the model no tokens but the characters of `text`. */
function only(text) {
  return Object.fromEntries([...Buffer.from(text)].map((byte) => [byte, 100]));
}

async function collect(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

test("models", async () => {
  assert.equal((await client.models.retrieve(model)).object, "model");
  const found = [];
  for await (const one of client.models.list()) found.push(one.id);
  assert.deepEqual(found, [model]);
});

test("chat", async () => {
  const answer = await client.chat.completions.create({ ...chat, logit_bias: only("A") });
  const [choice] = answer.choices;
  assert.equal(choice.message.role, "assistant");
  assert.equal(choice.message.content, "A".repeat(30));
  assert.equal(choice.finish_reason, "length");
  assert.equal(answer.usage.completion_tokens, 30);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 30);
  assert.ok(answer._request_id);
});

test("chat, streamed, with usage", async () => {
  const whole = await client.chat.completions.create(chat);
  const streamed = { ...chat, stream: true, stream_options: { include_usage: true } };
  const chunks = await collect(client.chat.completions.create(streamed));
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.equal(chunks.at(-2).choices[0].finish_reason, "length");
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
});

test("chat by the streaming helper", async () => {
  const stream = client.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
  let heard = "";
  stream.on("content", (delta) => (heard += delta));
  assert.equal(await stream.finalContent(), heard);
  assert.equal((await stream.totalUsage()).completion_tokens, 30);
});

test("several choices by the streaming helper", async () => {
  const whole = await client.chat.completions.create({ ...chat, n: 2 });
  const final = await client.chat.completions.stream({ ...chat, n: 2 }).finalChatCompletion();
  const contents = final.choices.map((one) => one.message.content);
  assert.deepEqual(contents, whole.choices.map((one) => one.message.content));
  assert.notEqual(contents[0], contents[1]);
});

test("a conversation, in which an answer is sent back as it came", async () => {
  const first = await client.chat.completions.create(chat);
  const turns = [...messages, first.choices[0].message, { role: "user", content: [{ type: "text", text: "And?" }] }];
  const second = await client.chat.completions.create({ ...chat, messages: turns });
  assert.ok(second.usage.prompt_tokens > first.usage.prompt_tokens + 30);
});

test("completions of text, of ids and of batches", async () => {
  const text = (await client.completions.create(completion)).choices[0].text;
  assert.equal(text.length, 12);
  for (const prompt of [[72, 105], [[72, 105]], ["Hi"]]) {
    assert.equal((await client.completions.create({ ...completion, prompt })).choices[0].text, text);
  }
  const batch = await client.completions.create({ ...completion, prompt: ["Hi", "Ho"], n: 2 });
  assert.deepEqual(batch.choices.map((one) => one.index), [0, 1, 2, 3]);
  assert.equal(batch.choices[0].text, text);
});

test("completions with echo, streamed or not", async () => {
  const plain = (await client.completions.create(completion)).choices[0].text;
  const echoed = { ...completion, echo: true };
  assert.equal((await client.completions.create(echoed)).choices[0].text, "Hi" + plain);
  const chunks = await collect(client.completions.create({ ...echoed, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), "Hi" + plain);
});

test("logprobs of chat", async () => {
  const wanted = { ...chat, logprobs: true, top_logprobs: 3 };
  const [choice] = (await client.chat.completions.create(wanted)).choices;
  const { content } = choice.logprobs;
  assert.equal(Buffer.from(content.flatMap((one) => one.bytes)).toString(), choice.message.content);
  assert.ok(content.every((one) => one.logprob <= 0 && one.top_logprobs.length === 3));
  const streamed = await client.chat.completions.stream(wanted).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].logprobs.content, content);
});

test("logprobs of completions, of a prompt that is echoed too", async () => {
  const [choice] = (await client.completions.create({ ...completion, echo: true, logprobs: 2 })).choices;
  const { tokens, token_logprobs, top_logprobs, text_offset } = choice.logprobs;
  assert.deepEqual(tokens, [...choice.text]);
  assert.deepEqual(text_offset, [...[...choice.text].keys()]);
  assert.equal(token_logprobs[0], null);
  assert.ok(token_logprobs.slice(1).every((value) => value <= 0));
  assert.equal(top_logprobs.length, tokens.length);
});

const refused = {
  "an unknown model": [{ model: "nobody" }, OpenAI.NotFoundError, "model", "model_not_found"],
  "a bad value": [{ temperature: 9 }, OpenAI.BadRequestError, "temperature", null],
  "an unknown field": [{ colour: "red" }, OpenAI.BadRequestError, "colour", null],
};

for (const [name, [fields, kind, param, code]] of Object.entries(refused)) {
  for (const stream of [false, true]) {
    test(`${name} is its error, ${stream ? "" : "not "}streamed`, async () => {
      await assert.rejects(client.chat.completions.create({ ...chat, ...fields, stream }), (error) => {
        assert.ok(error instanceof kind, error);
        assert.deepEqual([error.param, error.code, error.type], [param, code, "invalid_request_error"]);
        assert.ok(error.requestID);
        return true;
      });
    });
  }
}

test("a wrong key is its error", async () => {
  const stranger = client.withOptions({ apiKey: "sk-wrong" });
  await assert.rejects(stranger.chat.completions.create(chat), OpenAI.AuthenticationError);
});

test("a route that does not exist is its error", async () => {
  await assert.rejects(client.embeddings.create({ model, input: "x" }), OpenAI.NotFoundError);
});

test("streams that are left in the middle end at the server too", { timeout: 15_000 }, async ({ signal }) => {
  for await (const _ of await client.chat.completions.create({ ...endless, messages })) break;
  const stream = await client.completions.create({ ...endless, prompt: "Hi" });
  await stream[Symbol.asyncIterator]().next();
  stream.controller.abort();
  const helper = client.chat.completions.stream({ ...endless, messages });
  helper.once("chunk", () => helper.abort());
  await assert.rejects(helper.done(), OpenAI.APIUserAbortError);
  while ((await aborted()) < 3) await setTimeout(50, undefined, { signal });
});

async function aborted() {
  const headers = { authorization: `Bearer ${client.apiKey}` };
  const metrics = await (await fetch(new URL("/metrics", client.baseURL), { headers })).text();
  return Number(/^actorlm:request_success_total{.*"abort".*} (.+)$/m.exec(metrics)?.[1] ?? 0);
}
