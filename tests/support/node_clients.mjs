// The official SDKs of OpenAI and Anthropic for Node talk with an agent: `node node_clients.mjs URL NONCE`.
// They are imported from the folder that RAMET_NODE names. It prints what each call came to, as lines of JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(pathToFileURL(process.env.RAMET_NODE + "/index.js"));
const OpenAI = require("openai");
const Anthropic = require("@anthropic-ai/sdk");
const [where, key] = process.argv.slice(2);
const openai = new (OpenAI.default ?? OpenAI)({ baseURL: where + "/v1", apiKey: key, maxRetries: 0 });
const anthropic = new (Anthropic.default ?? Anthropic)({ baseURL: where, apiKey: key, maxRetries: 0 });
const said = (content) => [{ role: "user", content }];

async function tell(name, call) {
  try {
    console.log(JSON.stringify({ name, answer: await call() }));
  } catch (error) {
    const type = error.type ?? error.error?.error?.type ?? error.error?.type;
    console.log(JSON.stringify({ name, status: error.status, kind: error.constructor.name, type, message: error.message }));
  }
}

await tell("openai whole", async () => {
  const got = await openai.chat.completions.create({ model: "any", messages: said("a b") });
  return got.choices[0].message.content;
});
await tell("openai stream", async () => {
  const pieces = [];
  const stream = await openai.chat.completions.create({ model: "any", messages: said("c"), stream: true });
  for await (const chunk of stream) pieces.push(chunk.choices[0]?.delta?.content ?? "");
  return pieces.join("");
});
await tell("openai models", async () => (await openai.models.list()).data.length);
await tell("openai keyed", async () => {
  const ask = () =>
    openai.chat.completions.create({ model: "any", messages: said("k") }, { headers: { "Idempotency-Key": "node-1" } });
  const first = await ask();
  const second = await ask();
  return [first.choices[0].message.content, second.choices[0].message.content];
});
await tell("openai tools", () =>
  openai.chat.completions.create({
    model: "any",
    messages: said("a"),
    tools: [{ type: "function", function: { name: "f", parameters: { type: "object", properties: {} } } }],
  }),
);
await tell("openai responses", () => openai.responses.create({ model: "any", input: "a" }));
await tell("anthropic whole", async () => {
  const got = await anthropic.messages.create({ model: "any", max_tokens: 9, messages: said("d") });
  return got.content[0].text;
});
await tell("anthropic stream", async () => {
  const stream = anthropic.messages.stream({ model: "any", max_tokens: 9, messages: said("e") });
  return (await stream.finalMessage()).content[0].text;
});
await tell("anthropic beta", async () => {
  const got = await anthropic.beta.messages.create({ model: "any", max_tokens: 9, messages: said("f") });
  return got.content[0].text;
});
await tell("anthropic models", async () => (await anthropic.models.list()).data.length);
await tell("anthropic system", () =>
  anthropic.messages.create({ model: "any", max_tokens: 9, system: "Be brief.", messages: said("a") }),
);
await tell("anthropic count", () => anthropic.messages.countTokens({ model: "any", messages: said("a") }));
