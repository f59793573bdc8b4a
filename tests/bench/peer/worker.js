// SPDX-License-Identifier: Apache-2.0
// One task in a process of its own, as the sandbox that sk-code replaces does it: the listed modules are loaded beforehand, one line
// with the task comes in, one with the answer goes out, and the parent kills what is left. No walls at all: they only cost.
"use strict";
const readline = require("node:readline");

const modules = {};
for (const name of process.argv[2].split(",")) modules[name] = require(name);
const give = (name) => modules[name];

process.stdout.write("ready\n");
readline.createInterface({ input: process.stdin }).once("line", async (line) => {
    let answer;
    try {
        const { code, variables } = JSON.parse(line);
        const main = new Function("require", "variables", `"use strict";${code}\nreturn main`)(give, variables);
        const codeReturn = await main(variables);
        answer = { success: true, data: { codeReturn: codeReturn === undefined ? null : codeReturn, log: "" } };
    } catch (error) {
        answer = { success: false, message: String(error && error.message) };
    }
    process.stdout.write(JSON.stringify(answer) + "\n");
});
