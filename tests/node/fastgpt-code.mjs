// SPDX-License-Identifier: Apache-2.0
// The code sandbox as FastGPT uses it: a client on axios whose base is <CODE_SANDBOX_URL>/sandbox, with a bearer token and 180 s
// of patience, that takes success:false for an error; and the workflow's "code run" node, which spreads codeReturn into its outputs.
// node fastgpt-code.mjs URL TOKEN prints one line for each step that went well, and fails at the first that did not.
import assert from "node:assert/strict";
import http from "node:http";
import axios from "axios";

const [url, token] = process.argv.slice(2);
const TEMPLATES = {
    js: "function main({data1, data2}){\n\n    return {\n        result: data1,\n        data2\n    }\n}",
    py: "def main(data1, data2):\n    return {\n        \"result\": data1,\n        \"data2\": data2\n    }\n",
};

/** What FastGPT makes once for its life. */
function sandboxClient(base, secret, more = {}) {
    const client = axios.create({
        baseURL: `${base.replace(/\/$/, "")}/sandbox`,
        timeout: 180000,
        headers: { "Content-Type": "application/json", Authorization: secret ? `Bearer ${secret}` : undefined },
        proxy: false,
        ...more,
    });
    client.interceptors.response.use((response) =>
        response.data.success ? response.data : Promise.reject(new Error(response.data.message || "Request code sandbox failed")));
    return {
        packages: async () => (await client.get("/modules")).data,
        run: async (codeType, code, variables) => (await client.post(codeType === "py" ? "/python" : "/js", { code, variables })).data,
    };
}

/** What the workflow's node makes of it. */
async function codeNode(sandbox, { codeType, code, inputs }) {
    try {
        const { codeReturn, log } = await sandbox.run(codeType, code, inputs);

        return { data: { system_rawResponse: codeReturn, ...codeReturn }, nodeResponse: { customInputs: inputs, customOutputs: codeReturn, codeLog: log }, toolResponses: codeReturn };
    } catch (error) {
        return { error: { system_error_text: error.message }, nodeResponse: { customInputs: inputs, errorText: error.message } };
    }
}

async function step(name, work) {
    await work();
    console.log(`ok ${name}`);
}

const sandbox = sandboxClient(url, token);
const inputs = { data1: "你好 \"FastGPT\"\n", data2: [1, { two: null }] };

for (const codeType of ["js", "py"]) {
    await step(`${codeType} template`, async () => {
        const node = await codeNode(sandbox, { codeType, code: TEMPLATES[codeType], inputs });

        assert.deepEqual(node.data, { system_rawResponse: { result: inputs.data1, data2: inputs.data2 }, result: inputs.data1, data2: inputs.data2 });
        assert.deepEqual(node.toolResponses, { result: inputs.data1, data2: inputs.data2 });
        assert.deepEqual(node.nodeResponse, { customInputs: inputs, customOutputs: node.toolResponses, codeLog: "" });
    });
}
await step("log", async () => {
    const js = await codeNode(sandbox, { codeType: "js", code: "async function main() { console.log('a', { b: 1 }); console.log('c'); return {} }", inputs: {} });
    const py = await codeNode(sandbox, { codeType: "py", code: "def main():\n    print('a', 1)\n    print('c')\n    return {}", inputs: {} });

    assert.equal(js.nodeResponse.codeLog, "a {\"b\":1}\nc");
    assert.equal(py.nodeResponse.codeLog, "a 1\nc");
});
await step("errors are rejections with the message", async () => {
    await assert.rejects(sandbox.run("js", "function main() { throw new Error('my own words') }", {}), { message: "my own words" });
    await assert.rejects(sandbox.run("py", "def main():\n    raise ValueError('my own words')", {}), { message: "my own words" });
    await assert.rejects(sandbox.run("js", "function main() { return require('fs') }", {}), { message: "Module 'fs' is not allowed in sandbox" });
    await assert.rejects(sandbox.run("py", "import os\ndef main(): pass", {}), { message: "Module 'os' is not in the allowlist." });
    await assert.rejects(sandbox.run("js", " ", {}), { message: "Code cannot be empty" });
});
await step("the node shows an error", async () => {
    const node = await codeNode(sandbox, { codeType: "js", code: "function main() { throw new Error('shown') }", inputs });

    assert.deepEqual(node, { error: { system_error_text: "shown" }, nodeResponse: { customInputs: inputs, errorText: "shown" } });
});
await step("no inputs", async () => {
    assert.deepEqual((await sandbox.run("js", "function main() { return { n: Object.keys(variables).length } }", undefined)).codeReturn, { n: 0 });
    assert.deepEqual((await sandbox.run("py", "def main():\n    return {'n': len(variables)}", undefined)).codeReturn, { n: 0 });
});
await step("results that are no objects", async () => {
    const text = await codeNode(sandbox, { codeType: "js", code: "function main() { return 'ab' }", inputs: {} });
    const nothing = await codeNode(sandbox, { codeType: "py", code: "def main(): pass", inputs: {} });

    assert.deepEqual(text.data, { system_rawResponse: "ab", 0: "a", 1: "b" });
    assert.deepEqual(nothing.data, { system_rawResponse: null });
});
await step("packages", async () => {
    const packages = await sandbox.packages();

    assert.ok(packages.js.includes("lodash") && packages.python.includes("pandas"));
    assert.deepEqual(packages.builtinGlobals, ["SystemHelper.httpRequest"]);
});
await step("a slash at the end of the base", async () => {
    assert.deepEqual((await sandboxClient(`${url}/`, token).run("js", "function main() { return { ok: 1 } }", {})).codeReturn, { ok: 1 });
});
await step("wrong tokens", async () => {
    for (const secret of ["", "wrong"]) {
        const error = await sandboxClient(url, secret).run("js", TEMPLATES.js, inputs).then(() => null, (e) => e);

        assert.equal(error?.response?.status, 401);
    }
});
await step("a body that is too large", async () => {
    const error = await sandbox.run("js", TEMPLATES.js, { data1: "x".repeat(9 * 1024 * 1024) }).then(() => null, (e) => e);

    // The server may have closed the connection before the last byte was sent: an error of the network, never a result.
    assert.ok(error?.response?.status === 413 || ["EPIPE", "ECONNRESET"].includes(error?.code), `${error?.code} ${error?.message}`);
});
await step("keep-alive, many at once", async () => {
    const httpAgent = new http.Agent({ keepAlive: true, maxSockets: 4 });
    const kept = sandboxClient(url, token, { httpAgent });
    const all = await Promise.all(Array.from({ length: 40 }, (_, n) => kept.run(n % 2 ? "py" : "js", n % 2 ? "def main(n):\n    return {'n': n}" : "function main({ n }) { return { n } }", { n })));

    assert.deepEqual(all.map(({ codeReturn }) => codeReturn.n), Array.from({ length: 40 }, (_, n) => n));
    httpAgent.destroy();
});
await step("a client that gives up", async () => {
    const hurried = sandboxClient(url, token, { timeout: 200 });

    await assert.rejects(hurried.run("js", "async function main() { await delay(10000); return {} }", {}), { code: "ECONNABORTED" });
    assert.deepEqual((await sandbox.run("js", "function main() { return { ok: 1 } }", {})).codeReturn, { ok: 1 });
});
