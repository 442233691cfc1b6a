// Ask a gateway by OpenAI's client for Node and by MCP's SDK; print what they found as JSON.
// Run in a folder whose node_modules have openai and @modelcontextprotocol/sdk: node THIS URL QUESTION DOCUMENT...
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const here = createRequire(`${process.cwd()}/`);
const load = async (name) => import(pathToFileURL(here.resolve(name)));
const { default: OpenAI, NotFoundError } = await load("openai");
const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");

const [url, question, ...documents] = process.argv.slice(2);
const ai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const asked = {
  model: "evenmesh/demo",
  messages: [{ role: "user", content: question }],
  evenmesh: { skipObservation: true },
};
const found = { models: [], streamed: "" };
for await (const one of ai.models.list()) found.models.push(one.id);
found.answer = (await ai.chat.completions.create(asked)).choices[0].message.content;
for await (const chunk of await ai.chat.completions.create({ ...asked, stream: true })) {
  found.streamed += chunk.choices[0]?.delta?.content ?? "";
}
const stream = await ai.chat.completions.create({ ...asked, stream: true });
for await (const _ of stream) break; // the client hangs up
found.vectors = (await ai.embeddings.create({ model: "evenmesh", input: documents })).data.map((one) => one.embedding);
try {
  await ai.chat.completions.create({ ...asked, model: "evenmesh/nothing" });
} catch (error) {
  found.refused = [error instanceof NotFoundError, error.status, error.param];
}
const agent = new Client({ name: "tests", version: "1" });
await agent.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`)));
found.tools = (await agent.listTools()).tools.map((one) => one.name);
const reply = await agent.callTool({ name: "ask", arguments: { question, collection: "demo" } });
found.asked = reply.structuredContent ?? reply.content;
await agent.close();
process.stdout.write(`${JSON.stringify(found)}\n`);
