// SPDX-License-Identifier: Apache-2.0
// The unmodified npm SDK of OpenSandbox against sk-localbox: `node sdk.mjs <host:port> <key>`. One line "ok <name>" per check.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(new URL("../node/package.json", import.meta.url));
const { Sandbox, SandboxManager } = await import(pathToFileURL(require.resolve("@alibaba-group/opensandbox")));
const [domain, apiKey] = process.argv.slice(2);
const connectionConfig = { domain, apiKey, useServerProxy: true, requestTimeoutSeconds: 30 };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const step = async (name, run) => {
  await run();
  console.log(`ok ${name}`);
};
const texts = (list) => list.map((item) => item.text);

const sandbox = await Sandbox.create({
  connectionConfig, image: "node:20", timeoutSeconds: null, env: { GIVEN: "yes" }, metadata: { sessionId: "js" },
  networkPolicy: { defaultAction: "allow", egress: [{ action: "deny", target: "localhost" }] },
  volumes: [{ name: "workspace", pvc: { claimName: "js-volume", createIfNotExists: true }, mountPath: "/workspace" }],
});
console.log("ok create");

await step("info", async () => {
  const info = await sandbox.getInfo();
  assert.equal(info.status.state, "Running");
  assert.equal(info.metadata.sessionId, "js");
  assert.ok(info.createdAt);
  assert.ok(await sandbox.isHealthy());
});
await step("run", async () => {
  const result = await sandbox.commands.run("echo $GIVEN; echo err >&2; exit 7");
  assert.deepEqual(texts(result.logs.stdout), ["yes"]);
  assert.deepEqual(texts(result.logs.stderr), ["err"]);
  assert.equal(result.error.value, "7");
});
await step("stream", async () => {
  const types = [];
  const begun = Date.now();
  for await (const event of sandbox.commands.runStream("echo a; sleep 0.1; echo b")) types.push(event.type);
  assert.deepEqual(types, ["init", "ping", "stdout", "stdout", "execution_complete"]);
  assert.ok(Date.now() - begun < 900, "the stream ends right after its terminal event");
});
await step("background", async () => {
  const started = await sandbox.commands.run("echo one; echo two >&2; sleep 30", { background: true });
  const status = await sandbox.commands.getCommandStatus(started.id);
  assert.equal(status.running, true);
  let content = "", cursor = 0;
  for (let i = 0; i < 500 && content.length < 8; i++) {
    const logs = await sandbox.commands.getBackgroundCommandLogs(started.id, cursor);
    content += logs.content;
    cursor = logs.cursor;
  }
  assert.equal(content, "one\ntwo\n");
  await sandbox.commands.interrupt(started.id);
  assert.equal((await sandbox.commands.getCommandStatus(started.id)).running, false);
});
await step("files", async () => {
  const { files } = sandbox;
  const bytes = new Uint8Array(300000).map((_, i) => i % 251);
  await files.writeFiles([
    { path: "/workspace/a.txt", data: "hello\nworld\n", mode: 644 },
    { path: "/workspace/d/ünï cödé.bin", data: bytes },
  ]);
  assert.equal(await files.readFile("/workspace/a.txt"), "hello\nworld\n");
  assert.deepEqual(await files.readBytes("/workspace/d/ünï cödé.bin"), bytes);
  assert.deepEqual(await files.readBytes("/workspace/d/ünï cödé.bin", { range: "bytes=-3" }), bytes.slice(-3));
  assert.equal(await files.readFile("/workspace/a.txt", { offset: 2, limit: 1 }), "world");
  const info = (await files.getFileInfo(["/workspace/a.txt"]))["/workspace/a.txt"];
  assert.equal(info.size, 12);
  assert.equal(info.mode, 644);
  await files.setPermissions([{ path: "/workspace/a.txt", mode: 600 }]);
  await files.replaceContents([{ path: "/workspace/a.txt", oldContent: "world", newContent: "moon" }]);
  await files.moveFiles([{ src: "/workspace/a.txt", dest: "/tmp/b.txt" }]); // another mount
  assert.equal(await files.readFile("/tmp/b.txt"), "hello\nmoon\n");
  const found = await files.search({ path: "/workspace", pattern: "*.bin" });
  assert.deepEqual(found.map((f) => f.path), ["/workspace/d/ünï cödé.bin"]);
  await files.createDirectories([{ path: "/workspace/e/f", mode: 755 }]);
  const listed = await files.listDirectory({ path: "/workspace", depth: 2 });
  assert.deepEqual(listed.map((f) => f.path), ["/workspace/d", "/workspace/d/ünï cödé.bin", "/workspace/e", "/workspace/e/f"]);
  await files.deleteFiles(["/tmp/b.txt", "/tmp/absent"]);
  await files.deleteDirectories(["/workspace/e"]);
  await assert.rejects(files.readFile("/tmp/b.txt"));
  await files.writeFiles([{ path: "/workspace/s", data: (async function* () { yield "streamed "; yield "upload"; })() }]);
  assert.equal(await files.readFile("/workspace/s"), "streamed upload");
});
await step("metrics", async () => {
  const metrics = await sandbox.getMetrics();
  assert.ok(metrics.cpuCount >= 1);
});
await step("sessions", async () => {
  const id = await sandbox.commands.createSession({ workingDirectory: "/workspace" });
  await sandbox.commands.runInSession(id, "export A=1");
  const result = await sandbox.commands.runInSession(id, "echo $A; pwd");
  assert.deepEqual(texts(result.logs.stdout), ["1", "/workspace"]);
  await sandbox.commands.deleteSession(id);
});
await step("renew", async () => {
  const limited = await Sandbox.create({ connectionConfig, image: "x", timeoutSeconds: 60 });
  const renewed = await limited.renew(600);
  assert.ok(new Date(renewed.expiresAt) > Date.now() + 500000);
  await limited.kill();
  await limited.close();
});
await step("metadata and endpoints", async () => {
  const info = await sandbox.patchMetadata({ epoch: "2" });
  assert.equal(info.metadata.epoch, "2");
  assert.match(await sandbox.getEndpointUrl(3000), /\/sandboxes\/.*\/proxy\/3000$/);
});
await step("list", async () => {
  const manager = SandboxManager.create({ connectionConfig });
  const page = await manager.listSandboxInfos({ metadata: { sessionId: "js" }, states: ["Running"], pageSize: 100 });
  assert.ok(page.items.some((item) => item.id === sandbox.id));
  await manager.close();
});
await step("pause and resume", async () => {
  await sandbox.pause();
  assert.equal((await sandbox.getInfo()).status.state, "Paused");
  const resumed = await sandbox.resume();
  assert.deepEqual(texts((await resumed.commands.run("cat /workspace/s")).logs.stdout), ["streamed upload"]);
});
await step("kill", async () => {
  await sandbox.kill();
  await assert.rejects(sandbox.getInfo());
  await sandbox.close();
});
await sleep(0);
