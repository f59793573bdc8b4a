// SPDX-License-Identifier: Apache-2.0
// proto/asyncapi.yaml as the AsyncAPI project's own parser sees it: valid, all references found, every schema compiled by
// a JSON Schema implementation that is not the one of the Python tests, every example valid there too.
import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { Parser } from "@asyncapi/parser";
import Ajv from "ajv/dist/2020.js";

const proto = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../proto");
const source = path.join(proto, "asyncapi.yaml");
const format = "application/schema+json;version=draft-2020-12";
let passed = 0;
const faults = [];
function check(name, good, detail = "") {
  if (good) passed++;
  else faults.push(`${name}${detail ? `: ${detail}` : ""}`);
}

const ajv = new Ajv({ strict: true, strictTypes: false, strictRequired: false, allErrors: true, allowUnionTypes: true });
const schemas = new Map();
for (const entry of readdirSync(path.join(proto, "schemas"), { recursive: true })) {
  const name = String(entry).split(path.sep).join("/");
  if (!name.endsWith(".json")) continue;
  const schema = JSON.parse(readFileSync(path.join(proto, "schemas", name), "utf8"));
  schemas.set(name, schema);
  ajv.addSchema(schema);
}
for (const [name, schema] of schemas) {
  try {
    check(name, typeof ajv.getSchema(schema.$id) === "function");
  } catch (error) {
    check(name, false, error.message);
  }
}

const parser = new Parser();
parser.registerSchemaParser({
  getMimeTypes: () => [format],
  validate: () => [], // compiled above, where references between files are known by their $id
  parse: (input) => input.data,
});
const text = readFileSync(source, "utf8");
const { document, diagnostics } = await parser.parse(text, { source });
const severe = diagnostics.filter((item) => item.severity === 0);
check("asyncapi.yaml has no errors", severe.length === 0, severe.map((item) => `${item.path.join("/")} ${item.message}`).join("; "));
check("asyncapi.yaml could be parsed", document !== undefined);
if (document !== undefined) {
  check("it is AsyncAPI 3.0", document.version() === "3.0.0");
  check("no warnings but those about style", diagnostics.every((item) => item.severity !== 1 || /asyncapi-(info|tags|.*contact|latest)|license|tags/.test(String(item.code))),
    diagnostics.filter((item) => item.severity === 1).map((item) => `${item.code}: ${item.message}`).join("; "));
  for (const operation of document.operations()) {
    check(`operation ${operation.id()} has a channel`, operation.channels().length === 1);
    if (operation.isReceive() && operation.id() !== "rpc.wake.receive") check(`operation ${operation.id()} says where its answer goes`, operation.reply() !== undefined);
  }
  for (const message of document.components().messages()) {
    const example = JSON.parse(readFileSync(path.join(proto, message.json()["x-example"]), "utf8"));
    const payload = message.json().payload.schema ?? message.json().payload;
    const validate = ajv.getSchema(payload.$id);
    check(`${message.name()}: example is valid`, validate !== undefined && validate(example.payload), ajv.errorsText(validate?.errors));
    check(`${message.name()}: a schema that takes anything is only that of dead letters`, message.name() === "dead" || !validate(null));
  }
}
for (const fault of faults) console.error(`FAULT ${fault}`);
console.log(`${passed} passed, ${faults.length} failed`);
process.exit(faults.length === 0 ? 0 : 1);
