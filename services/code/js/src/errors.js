// SPDX-License-Identifier: Apache-2.0
// What is told about an error: message, type, the line of the task's own code, and its own frames only. Reading an error
// may run the task's code (getters, proxies) and may throw: then less is told.
import { charCodeAt, indexOf, lastIndexOf, NumberOf, slice, StringOf } from "./primordials.js";

export const USER_FILE = "code.js"; // as the native side names it
const FRAMES_MAX = 50;
const HEAD = 25; // characters before the code on its first line
const OWN = "sandkeep:"; // scripts of the runtime

function read(value, name) {
    try {
        return value[name];
    } catch {
        return undefined;
    }
}

function textOf(value) {
    try {
        return StringOf(value);
    } catch {
        return "Unknown error";
    }
}

function messageOf(error) {
    if (typeof error !== "object" || error === null) return textOf(error);
    const message = read(error, "message");

    return typeof message === "string" ? message : textOf(error);
}

function typeOf(error) {
    if (typeof error !== "object" || error === null) return error === null ? "null" : typeof error;
    const name = read(error, "name");

    return typeof name === "string" && name !== "" ? name : "Error";
}

/** "TypeError: x" as one line of the log; without a message just "TypeError". */
export function briefly(error) {
    const message = messageOf(error);

    if (message === "") return typeOf(error);
    return typeof error === "object" && error !== null ? typeOf(error) + ": " + message : message;
}

// One line of JavaScriptCore's stack: "name@file:line:column", "file:line:column" or "name@[native code]".
function frameOf(text) {
    const column = lastIndexOf(text, ":");
    const line = column > 0 ? lastIndexOf(text, ":", column - 1) : -1;

    if (line < 0) return null;
    const at = lastIndexOf(text, "@", line);
    const file = slice(text, at + 1, line);
    const number = NumberOf(slice(text, line + 1, column));

    if (file === "" || indexOf(file, OWN) === 0 || indexOf(file, "[native") === 0 || !(number > 0)) return null;
    const place = NumberOf(slice(text, column + 1));

    return { name: at > 0 ? slice(text, 0, at) : "", line: number, column: number === 1 && place > HEAD ? place - HEAD : place };
}

function isBlank(text) {
    for (let i = 0; i < text.length; i++) if (charCodeAt(text, i) > 32) return false;
    return true;
}

/**
 * {message, type, line, traceback} of whatever was thrown; line 0 and traceback "" where there is none. An empty message is
 * the type: a caller that shows the message only must have something to show.
 */
export function describe(error) {
    const type = typeOf(error);
    const told = { message: messageOf(error) || type, type, line: 0, traceback: "" };

    if (typeof error !== "object" || error === null) return told;
    const stack = read(error, "stack");
    let frames = "", count = 0;

    if (typeof stack === "string") {
        let from = 0;

        while (from <= stack.length && count < FRAMES_MAX) {
            let to = indexOf(stack, "\n", from);

            if (to < 0) to = stack.length;
            const text = slice(stack, from, to);
            const frame = isBlank(text) ? null : frameOf(text);

            from = to + 1;
            if (frame === null) continue;
            if (count === 0) told.line = frame.line;
            count++;
            frames += "\n    at " + (frame.name === "" ? USER_FILE : frame.name + " (" + USER_FILE) + ":" + frame.line + ":" + frame.column;
            if (frame.name !== "") frames += ")";
        }
    }
    // A syntax error has no frame in the code: it never ran.
    if (read(error, "sourceURL") === USER_FILE) {
        const line = read(error, "line");

        if (typeof line === "number" && line > 0) {
            told.line = line;
            if (count === 0) frames = "\n    at " + USER_FILE + ":" + line;
        }
    }
    if (frames !== "") told.traceback = briefly(error) + frames;
    return told;
}
