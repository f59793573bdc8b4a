// SPDX-License-Identifier: Apache-2.0
// FastGPT's schema library on our records, and our store on its: read, hydrated, validated, saved and updated by mongoose
// in its strict mode, claimed by either side, with the same types from both.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import mongoose from "mongoose";
import { Instance, advance, claim, complete, markFailed, operationOf, stable, statuses, touchRunning } from "./model.mjs";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../..");
const tool = path.join(process.env.SANDKEEP_BIN_DIR ?? path.join(root, "build/debug/bin"), "sk-test-store");
const tools = process.env.SANDKEEP_TOOLS_DIR ?? path.join(process.env.XDG_CACHE_HOME ?? path.join(os.homedir(), ".cache"), "sandkeep/tools");
const program =
  process.env.SANDKEEP_TEST_MONGO === "fast"
    ? path.join(tools, "secantus-mdb-0.5.3-beta.193/bin/secantusd-rs")
    : path.join(tools, "secantusdb-0.7.0b3/bin/secantusd-py");
const missing = [tool, program].filter((file) => !existsSync(file));

let server, uri, directory;

async function freePort() {
  const listener = net.createServer();
  await new Promise((resolve) => listener.listen(0, "127.0.0.1", resolve));
  const { port } = listener.address();
  await new Promise((resolve) => listener.close(resolve));
  return port;
}

before(async () => {
  if (missing.length > 0) return;
  const port = await freePort();
  directory = mkdtempSync(path.join(os.tmpdir(), "sk-mongoose-"));
  server = spawn(program, ["--sync-on-commit", "--host", "127.0.0.1", "--port", String(port), "--storage-path", directory, "--log-level", "WARNING"], {
    stdio: "ignore",
  });
  uri = `mongodb://127.0.0.1:${port}/fastgpt`;
  await mongoose.connect(uri, { serverSelectionTimeoutMS: 20000, autoIndex: true });
  await Instance.init();
});
after(async () => {
  await mongoose.disconnect();
  server?.kill("SIGKILL");
  if (directory) rmSync(directory, { recursive: true, force: true, maxRetries: 10 });
});

function ours(...command) {
  const text = execFileSync(tool, [uri, ...command], { encoding: "utf8" });
  return text === "" ? null : JSON.parse(text);
}
const raw = (sandboxId) => Instance.collection.findOne({ sandboxId }, { promoteLongs: false, promoteValues: false });
function it(name, body) {
  test(name, { skip: missing.length > 0 ? `not there: ${missing}` : false }, body);
}
function identity(name) {
  // app-<16 hex of sha256("<sourceId>-<userId>")>, as both sides compute it.
  const userId = "66b2aa10c4f3d5e7a9b1c201";
  return import("node:crypto").then(({ createHash }) => ({
    provider: "opensandbox", sourceType: "app", sourceId: name, userId,
    sandboxId: `app-${createHash("sha256").update(`${name}-${userId}`).digest("hex").slice(0, 16)}`,
  }));
}
async function fastgptProvisioning(name) {
  const now = new Date();
  return Instance.create({
    ...(await identity(name)), status: "provisioning", limit: { cpuCount: 1, memoryMiB: 2048, storageSize: "1Gi" },
    storage: { volumes: [{ name: "workspace", claimName: `fastgpt-session-${name}-0`, mountPath: "/workspace" }], mountPath: "/workspace" },
    teamId: "66c3bb20d5a4e6f8b0c2d301", image: { repository: "registry.example/agent", tag: "v1" },
    operation: { id: crypto.randomUUID(), type: "provision", phase: "claimed", startedAt: now, heartbeatAt: now },
  });
}

it("mongoose reads, hydrates, validates and saves a record of ours", async () => {
  const { sandboxId } = ours("new");
  for (const step of [["phase", sandboxId, "providerEnsured"], ["fail", sandboxId], ["complete", sandboxId]]) {
    const doc = await Instance.findOne({ sandboxId });
    await doc.validate();
    assert.equal(doc.operation.type, "provision");
    const hydrated = Instance.hydrate(await Instance.collection.findOne({ sandboxId }));
    await hydrated.validate();
    assert.equal(hydrated.sandboxId, sandboxId);
    assert.equal((await Instance.find({ status: "provisioning", "operation.heartbeatAt": { $lt: new Date(Date.now() + 1000) } })).length, 1);
    ours(...step);
  }
  const before = await raw(sandboxId);
  const doc = await Instance.findOne({ sandboxId });
  assert.equal(doc.status, "running");
  assert.equal(doc.operation, undefined);
  doc.lastActiveAt = new Date(1764500000000);
  doc.teamId = "another";
  await doc.save();
  const after = await raw(sandboxId);
  assert.equal(+after.lastActiveAt, 1764500000000);
  assert.deepEqual(
    { ...after, lastActiveAt: 0, teamId: 0 },
    { ...before, lastActiveAt: 0, teamId: 0 },
    "a save may change nothing but what was set",
  );
  assert.equal(Number(after.epoch) > 1.7e12, true);
  assert.equal(ours("get", sandboxId).teamId, "another");
});

it("updates by mongoose leave our fields alone", async () => {
  const { sandboxId } = ours("new");
  const epoch = (await raw(sandboxId)).epoch;
  let result = await Instance.updateOne({ sandboxId }, { $set: { versionId: "v2", limit: { cpuCount: 2, memoryMiB: 4096, storageSize: "2Gi" } } });
  assert.equal(result.modifiedCount, 1);
  result = await Instance.updateOne({ sandboxId, teamId: { $in: [null] } }, { $set: { teamId: "x" } });
  assert.equal(result.matchedCount, 0);
  const now = await raw(sandboxId);
  assert.deepEqual(now.epoch, epoch);
  assert.equal(now.outbox.length, 1);
  assert.equal(now.operation.jobId.length, 36);
  assert.equal(ours("get", sandboxId).limit.cpuCount, 2);
});

it("what FastGPT must not do with it fails aloud", async () => {
  const { sandboxId } = ours("new");
  const doc = await Instance.findOne({ sandboxId });
  // By design: its strict mode refuses fields it does not know in a new document.
  assert.throws(() => new Instance(doc.toObject()), { name: "StrictModeError" });
  await assert.rejects(Instance.updateOne({ sandboxId }, { $set: { epoch: 1 } }), { name: "StrictModeError" });
  doc.status = "running";
  await assert.rejects(doc.validate(), /Stable status running must not keep an operation/);
});

it("FastGPT stops a sandbox of ours, and we see it", async () => {
  const { sandboxId } = ours("new");
  ours("phase", sandboxId, "providerEnsured");
  ours("complete", sandboxId);
  const epoch = Number((await raw(sandboxId)).epoch);
  const running = await touchRunning(await Instance.findOne({ sandboxId }));
  assert.notEqual(running, null);
  const claimed = await claim(running, "stopping", "claimed");
  assert.equal(claimed.operation.previousStatus, "running");
  assert.equal(await claim(running, "stopping", "claimed"), null, "a stale snapshot claimed");
  let view = ours("get", sandboxId);
  assert.equal(view.malformed, undefined);
  assert.equal(view.operation.owner, undefined);
  assert.equal(view.operation.jobId, undefined);
  assert.equal(view.epoch, epoch);
  await markFailed(claimed, "TypeError: fetch failed: ".repeat(60));
  view = ours("get", sandboxId);
  assert.equal(view.malformed, undefined);
  assert.equal(view.operation.error.code, undefined);
  assert.match(view.operation.error.detail, /^TypeError: fetch failed/);
  const advanced = await advance(claimed, "providerStopped");
  assert.equal(advanced.operation.error, undefined);
  const stopped = await complete(advanced, "stopped");
  assert.equal(stopped.status, "stopped");
  view = ours("get", sandboxId);
  assert.equal(view.status, "stopped");
  assert.equal(view.epoch, epoch);
});

it("we take over what FastGPT began, and FastGPT sees it", async () => {
  const doc = await fastgptProvisioning("took-over");
  let view = ours("get", doc.sandboxId);
  assert.equal(view.malformed, undefined);
  assert.equal(view.status, "provisioning");
  assert.equal(view.epoch, undefined);
  view = ours("claim", doc.sandboxId, "provision");
  assert.equal(view.operation.owner, "compat");
  assert.equal(view.sequence, 1);
  assert.equal(await advance(doc, "providerEnsured"), null, "the old owner still commits");
  ours("phase", doc.sandboxId, "providerEnsured");
  ours("complete", doc.sandboxId);
  const now = await Instance.findOne({ sandboxId: doc.sandboxId });
  await now.validate();
  assert.equal(now.status, "running");
  assert.equal(now.operation, undefined);
  assert.equal(now.storage.volumes[0].claimName, "fastgpt-session-took-over-0");
  assert.equal(now.image.repository, "registry.example/agent");
});

it("every status of the table passes FastGPT's validation with our operation in it", async () => {
  for (const [status, type] of Object.entries(operationOf)) {
    const { sandboxId } = ours("new");
    ours("phase", sandboxId, "providerEnsured");
    ours("complete", sandboxId);
    if (["restore", "provision"].includes(type)) {
      const stopped = await complete(await claim(await Instance.findOne({ sandboxId }), "stopping", "claimed"), type === "restore" ? "archived" : "stopped");
      assert.equal(stable.includes(stopped.status), true);
    }
    ours("claim", sandboxId, type);
    const doc = await Instance.findOne({ sandboxId });
    assert.equal(doc.status, status);
    await doc.validate();
    await doc.save();
  }
  assert.equal(statuses.length, Object.keys(operationOf).length + stable.length);
});

// The type of every field both sides write, as the server sees it.
async function types(sandboxId, paths) {
  const project = Object.fromEntries(paths.map((field, index) => [`f${index}`, { $type: `$${field}` }]));
  const [found] = await Instance.collection.aggregate([{ $match: { sandboxId } }, { $project: project }]).toArray();
  return Object.fromEntries(paths.map((field, index) => [field, found[`f${index}`]]));
}
it("both sides write the same types", async () => {
  const paths = [
    "_id", "provider", "sandboxId", "sourceType", "sourceId", "userId", "status", "lastActiveAt", "createdAt", "limit", "limit.memoryMiB",
    "limit.storageSize", "storage", "storage.volumes", "storage.mountPath", "teamId", "image", "image.repository", "image.tag", "versionId",
    "operation", "operation.id", "operation.type", "operation.phase", "operation.previousStatus", "operation.startedAt", "operation.heartbeatAt",
    "operation.failedAt", "operation.error",
  ];
  const { sandboxId } = ours("new");
  const theirs = await fastgptProvisioning("types");
  assert.deepEqual(await types(sandboxId, paths), await types(theirs.sandboxId, paths));
  ours("fail", sandboxId);
  await markFailed(theirs, "x");
  assert.deepEqual(await types(sandboxId, paths), await types(theirs.sandboxId, paths));
  // JavaScript has one kind of number: whole ones become int, others double.
  await Instance.updateOne({ _id: theirs._id }, { $set: { "limit.cpuCount": 0.5 } });
  assert.deepEqual(await types(sandboxId, ["limit.cpuCount"]), await types(theirs.sandboxId, ["limit.cpuCount"]));
});

it("indexes live beside each other, and come back when FastGPT drops what it does not know", async () => {
  const keys = async () => (await Instance.collection.indexes()).map(({ key }) => JSON.stringify(key));
  const theirs = await keys();
  ours("setup");
  const both = await keys();
  for (const key of theirs) assert.equal(both.includes(key), true, key);
  assert.equal(both.length > theirs.length, true);
  await Instance.syncIndexes();
  assert.deepEqual(await keys(), theirs, "syncIndexes drops ours: setup has to run again");
  const { sandboxId } = ours("new"); // slower, not wrong
  assert.equal(ours("get", sandboxId).status, "provisioning");
  ours("setup");
  assert.deepEqual((await keys()).sort(), both.sort());
});
