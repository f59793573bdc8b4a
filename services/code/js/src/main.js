// SPDX-License-Identifier: Apache-2.0
// Entry of the script that the JavaScript sandbox embeds: `host` (the native functions, natives.c) comes from outside, the
// exports are what the native side calls. The imports run in this order: the guard first, the modules last.
import { defineProperty, ErrorOf, give, indexOf, jsonParse, RangeErrorOf, isPrototypeOf, slice, SyntaxErrorOf } from "./primordials.js";
import { hide, strictPrototypes } from "./guard.js";
import { encode, TOO_LARGE } from "./encode.js";
import { briefly, describe, USER_FILE } from "./errors.js";
import "./console.js";
import { fire } from "./timers.js";
import { seed } from "./text.js";
import { answer, disconnect, setLimits } from "./http.js";
import "./helpers.js";
import { allow } from "./modules.js";
import { Parser } from "acorn";
import rehearsalCode from "./rehearsal.task.js";

export { allow, answer, disconnect, fire, hide };

const RangeErrorPrototype = RangeErrorOf.prototype;
let importAt = -1;
const Finder = Parser.extend((Base) => class extends Base {
    parseDynamicImport(...args) {
        importAt = this.start;
        return super.parseDynamicImport(...args);
    }
});

function lineCount(code) {
    let lines = 1;

    for (let at = indexOf(code, "\n"); at >= 0; at = indexOf(code, "\n", at + 1)) lines++;
    return lines;
}

// An error that is about a line of the code though none of the code ran.
function place(error, line) {
    defineProperty(error, "line", { value: line });
    defineProperty(error, "sourceURL", { value: USER_FILE });
    return error;
}

// Only code in which the word stands is parsed for it. What this parser cannot read is left to the engine: it refuses a
// syntax error in its own words, and an import() that is reached all the same.
function refuseImport(code) {
    importAt = -1;
    try {
        Finder.parse(code, { ecmaVersion: "latest", allowReturnOutsideFunction: true });
    } catch {
        return;
    }
    if (importAt < 0) return;
    const refusal = new ErrorOf("Dynamic import() is not allowed in sandbox. Use require() instead.");

    throw place(refusal, lineCount(slice(code, 0, importAt)));
}

// What the engine finds behind the end of the code is about what we put there: said in words about the code instead.
function compile(code) {
    try {
        return host.compile(code);
    } catch (error) {
        const last = lineCount(code);

        if (!(error.line > last)) throw error;
        const told = new SyntaxErrorOf("Unexpected end of the code: there is a bracket too many or too few");

        throw place(told, last);
    }
}

// In the original's words, and the engine's; a constant, because there is nothing to make it of.
const OUT_OF_MEMORY = "Memory limit exceeded: Out of memory";

function isOutOfMemory(error) {
    try {
        return isPrototypeOf(RangeErrorPrototype, error) && indexOf(error.message, "Out of memory") === 0;
    } catch {
        return false;
    }
}

export function fail(error) {
    if (error === TOO_LARGE) {
        host.overflow();
        return;
    }
    const { message, type, line, traceback } = describe(error);

    if (isOutOfMemory(error)) host.fail("memory", OUT_OF_MEMORY, type, line, traceback);
    else host.fail("error", message, type, line, traceback);
}

/** One task, from its text to its result. Never throws; ends by host.finish(), host.fail() or host.overflow(), once. */
export async function begin(code, variablesText, strict, limits, w0, w1, w2, w3) {
    try {
        seed(w0, w1, w2, w3);
        setLimits(limits);
        if (strict) strictPrototypes();
        if (indexOf(code, "import") >= 0) refuseImport(code);

        const variables = jsonParse(variablesText);

        give("variables", variables);
        const main = compile(code)();

        if (typeof main !== "function") throw new ErrorOf("No 'main' function defined");
        host.finish(encode(await main(variables), limits.outputBytes, strict));
    } catch (error) {
        fail(error);
    }
}

/** The engine's: a promise was rejected, and nobody listens. The task goes on, as after a throw in a timer. */
export function unhandled(promise, reason) {
    host.log("Uncaught (in promise) " + briefly(reason));
}

/** The task of rehearsal.task.js; its end is told like any other's. */
export function rehearse() {
    const variables = { items: [{ price: 2.5, count: 2 }, { price: 1, count: 3 }], text: "the quick brown fox \u4f60\u597d", n: 42 };

    begin(rehearsalCode, JSON.stringify(variables), false, { outputBytes: 1e6, requestMax: 0, requestBytes: 0, requestMs: 0 }, 1, 2, 3, 4);
}
