// SPDX-License-Identifier: Apache-2.0
// FastGPT's instance model as its contract describes it (fields, validators, strictness, indexes, the pre-validate hook)
// and its compare-and-set primitives. Written from that description; nothing of FastGPT's source is used.
import mongoose from "mongoose";

const { Schema } = mongoose;
export const statuses = [
  "provisioning", "legacyMigrating", "running", "stopping", "stopped", "archiving", "archived", "restoring", "deleting",
];
export const stable = ["running", "stopped", "archived"];
export const operationOf = {
  provisioning: "provision", legacyMigrating: "legacyMigration", stopping: "stop", archiving: "archive",
  restoring: "restore", deleting: "delete",
};

const operation = new Schema(
  {
    id: { type: String, required: true, minlength: 1 },
    type: { type: String, required: true, enum: Object.values(operationOf) },
    phase: { type: String, required: true, minlength: 1 },
    previousStatus: { type: String, enum: stable },
    startedAt: { type: Date, required: true },
    heartbeatAt: { type: Date, required: true },
    failedAt: Date,
    error: String,
  },
  { _id: false, strict: "throw" },
);

const image = new Schema({ repository: { type: String, required: true }, tag: String }, { _id: false, strict: "throw" });

// The setter parses the value; an unknown key is an error, not a loss.
function parseImage(value) {
  if (value === null || value === undefined) return value;
  const { repository, tag, ...rest } = typeof value.toObject === "function" ? value.toObject() : value;
  if (typeof repository !== "string" || repository === "") throw new Error("image.repository is required");
  if (Object.keys(rest).length > 0) throw new Error(`image has unknown keys ${Object.keys(rest)}`);
  return tag === undefined ? { repository } : { repository, tag };
}

const schema = new Schema(
  {
    provider: { type: String, required: true, enum: ["opensandbox", "sealosdevbox"] },
    sandboxId: { type: String, required: true },
    sourceType: { type: String, required: true, enum: ["app", "skillEdit", "workflowBuilder"] },
    sourceId: { type: String, required: true },
    userId: { type: String, required: true },
    status: { type: String, required: true, enum: statuses },
    lastActiveAt: { type: Date, required: true, default: () => new Date() },
    createdAt: { type: Date, required: true, default: () => new Date() },
    limit: { type: new Schema({ cpuCount: Number, memoryMiB: Number, storageSize: String }, { _id: false }), default: undefined },
    storage: { type: Schema.Types.Mixed, default: undefined },
    teamId: String,
    image: { type: image, set: parseImage, default: undefined },
    versionId: String,
    operation: { type: operation, default: undefined },
  },
  { collection: "agent_sandbox_instances_v2", strict: "throw" },
);
schema.index({ provider: 1, sandboxId: 1 }, { unique: true });
schema.index({ sourceType: 1, sourceId: 1, userId: 1 }, { unique: true });
schema.index({ sourceType: 1, status: 1, provider: 1 });
schema.index({ status: 1, lastActiveAt: 1 });
schema.index({ status: 1, "operation.heartbeatAt": 1 });
schema.pre("validate", function () {
  const wanted = operationOf[this.status];
  if (wanted === undefined && this.operation) throw new Error(`Stable status ${this.status} must not keep an operation`);
  if (wanted !== undefined && this.operation?.type !== wanted) throw new Error(`Status ${this.status} requires ${wanted} operation`);
});

export const Instance = mongoose.model("agent_sandbox_instances_v2", schema);

// The compare-and-sets; all return the new document or null.
export function claim(snapshot, status, phase) {
  const now = new Date();
  return Instance.findOneAndUpdate(
    {
      _id: snapshot._id,
      status: snapshot.status,
      ...(snapshot.operation ? { "operation.id": snapshot.operation.id } : { operation: { $exists: false } }),
    },
    {
      $set: {
        status,
        operation: {
          id: crypto.randomUUID(), type: operationOf[status], phase,
          ...(stable.includes(snapshot.status) ? { previousStatus: snapshot.status } : {}), startedAt: now, heartbeatAt: now,
        },
      },
    },
    { new: true },
  );
}
export function advance(doc, phase) {
  return Instance.findOneAndUpdate(
    { _id: doc._id, status: doc.status, "operation.id": doc.operation.id },
    { $set: { "operation.phase": phase, "operation.heartbeatAt": new Date() }, $unset: { "operation.failedAt": 1, "operation.error": 1 } },
    { new: true },
  );
}
export function markFailed(doc, text) {
  const now = new Date();
  return Instance.findOneAndUpdate(
    { _id: doc._id, status: doc.status, "operation.id": doc.operation.id },
    { $set: { "operation.failedAt": now, "operation.error": text, "operation.heartbeatAt": now } },
    { new: true },
  );
}
export function complete(doc, status) {
  return Instance.findOneAndUpdate(
    { _id: doc._id, status: doc.status, "operation.id": doc.operation.id },
    { $set: { status, lastActiveAt: new Date() }, $unset: { operation: 1 } },
    { new: true },
  );
}
export function touchRunning(doc) {
  return Instance.findOneAndUpdate(
    {
      provider: doc.provider, sandboxId: doc.sandboxId, sourceType: doc.sourceType, sourceId: doc.sourceId, userId: doc.userId,
      status: "running", operation: { $exists: false },
      "storage.volumes": { $elemMatch: { name: "workspace", claimName: doc.storage.volumes[0].claimName } },
    },
    { $set: { lastActiveAt: new Date() } },
    { new: true },
  );
}
