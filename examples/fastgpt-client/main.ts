// SPDX-License-Identifier: Apache-2.0
// What FastGPT does for one agent turn, with nothing but the official NATS client: publish a command with an inbox, print
// progress and the result that come to it, and the sandbox's events meanwhile. npm start -- --app ID --user ID
import { createHash, randomUUID } from "node:crypto";
import { parseArgs } from "node:util";
import { connect, createInbox, headers, JSONCodec } from "nats";

const { values } = parseArgs({ options: { app: { type: "string", default: "demo-app" }, user: { type: "string", default: "demo-user" } } });
const source = { sourceType: "app", sourceId: values.app, userId: values.user };
const sandboxId = `app-${createHash("sha256").update(`${source.sourceId}-${source.userId}`).digest("hex").slice(0, 16)}`;
const json = JSONCodec<any>();
const nc = await connect({ servers: process.env.SANDKEEP_NATS_URL ?? "nats://127.0.0.1:4222", token: process.env.SANDKEEP_NATS_TOKEN });

nc.subscribe(`sandbox.evt.${sandboxId}.>`, {
  callback: (_error, event) => console.log(`event    ${event.headers?.get("ce-type")} ${JSON.parse(event.string()).to ?? ""}`),
});

async function command(op: string, params: object = {}): Promise<boolean> {
  const inbox = createInbox(), answers = nc.subscribe(inbox, { timeout: 125_000 }), h = headers();
  h.set("Sandbox-Reply-To", inbox);
  const body = { id: randomUUID(), op, source, sandboxId, requestedAt: new Date().toISOString(), deadlineMs: 120_000, params };
  await nc.jetstream().publish(`sandbox.cmd.lifecycle.${op}.${sandboxId}`, json.encode(body), { headers: h });
  for await (const message of answers) {
    const answer = json.decode(message.data);
    if (!message.headers?.has("Sandbox-Progress")) {
      console.log(`result   ${op}: ${answer.ok ? answer.status : `${answer.error.code}: ${answer.error.detail}`}`);
      return answer.ok;
    }
    console.log(`progress ${op}: ${answer.status}, ${answer.phase}`);
  }
  return false;
}

const done = (await command("ensure", { reason: "agent turn" })) && (await command("stop")) && (await command("delete", { reason: "example" }));
await nc.drain();
process.exit(done ? 0 : 1);
