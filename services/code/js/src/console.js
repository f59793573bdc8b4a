// SPDX-License-Identifier: Apache-2.0
// The console: one sink for every method; objects as JSON, everything else as String, joined by spaces.
import { give, jsonStringify, StringOf } from "./primordials.js";

function write(...args) {
    let line = "";

    for (let i = 0; i < args.length; i++) {
        const value = args[i];

        line += (i > 0 ? " " : "") + StringOf(typeof value === "object" ? jsonStringify(value) : value);
    }
    host.log(line);
}

const console = {};
for (const name of ["log", "info", "warn", "error", "debug", "trace", "dir", "table"]) console[name] = { [name]: (...args) => write(...args) }[name];
give("console", console);
