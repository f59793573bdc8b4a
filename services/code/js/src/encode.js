// SPDX-License-Identifier: Apache-2.0
// A value as JSON text, with what JSON.stringify would lose or refuse (contract/code.md, values): Map -> object, Set and
// typed arrays -> array, BigInt -> number when it is safe, else text. Everything else, toJSON included, is as there.
import { bigintValue, booleanValue, getPrototypeOf, isArray, isPrototypeOf, isView, jsonStringify, mapForEach, mapSize, numberValue } from "./primordials.js";
import { objectKeys, ObjectPrototype, reflectApply, setAdd, setDelete, setForEach, setHas, SetOf, setSize, StringOf, NumberOf } from "./primordials.js";
import { stringValue, tagOf, typedTag, TypeErrorOf } from "./primordials.js";

/** Thrown when the text is longer than it may be. */
export const TOO_LARGE = {};

const SAFE = 9007199254740991n;
const WATCH_DEPTH = 100; // a cycle is looked for only below it: no bookkeeping for ordinary values
const RangeErrorPrototype = RangeError.prototype;
const BytesPrototype = ArrayBuffer.prototype;
const Bytes = Uint8Array;

let room = 0;
let ancestors = null;

function spend(text) {
    room -= text.length;
    if (room < 0) throw TOO_LARGE;
    return text;
}

function quote(text) {
    return spend(jsonStringify(text));
}

function big(value) {
    return spend(value <= SAFE && value >= -SAFE ? StringOf(value) : '"' + StringOf(value) + '"');
}

function enter(value, depth) {
    if (depth < WATCH_DEPTH) return;
    if (depth === WATCH_DEPTH) ancestors = new SetOf();
    if (setHas(ancestors, value)) throw new TypeErrorOf("JSON.stringify cannot serialize cyclic structures.");
    setAdd(ancestors, value);
}

function leave(value, depth) {
    if (depth >= WATCH_DEPTH) setDelete(ancestors, value);
}

function list(value, depth) {
    const length = value.length;
    let text = "[";

    for (let i = 0; i < length; i++) {
        if (i > 0) text += ",";
        text += member(value[i], i, depth + 1) ?? spend("null");
        room--;
    }
    return text + "]";
}

function record(value, depth) {
    const keys = objectKeys(value);
    const length = keys.length;
    let text = "{", first = true;

    for (let i = 0; i < length; i++) {
        const key = keys[i];
        const item = member(value[key], key, depth + 1);

        if (item === undefined) continue;
        text += (first ? "" : ",") + quote(key) + ":" + item;
        first = false;
        room -= 2;
    }
    return text + "}";
}

function mapping(value, depth) {
    let text = "{", first = true;

    mapForEach(value, (item, key) => {
        const encoded = member(item, key, depth + 1);

        if (encoded === undefined) return;
        text += (first ? "" : ",") + quote(StringOf(key)) + ":" + encoded;
        first = false;
        room -= 2;
    });
    return text + "}";
}

function collection(value, depth) {
    let text = "[", first = true;

    setForEach(value, (item) => {
        text += (first ? "" : ",") + (member(item, "", depth + 1) ?? spend("null"));
        first = false;
        room--;
    });
    return text + "]";
}

function has(read, value) {
    try {
        read(value);
        return true;
    } catch {
        return false;
    }
}

// Neither a plain object nor an array: by what it really is, not by the name of its class.
function special(value, depth) {
    switch (tagOf(value)) {
        case "[object Number]":
            if (has(numberValue, value)) return member(NumberOf(value), "", depth);
            break;
        case "[object String]":
            if (has(stringValue, value)) return quote(StringOf(value));
            break;
        case "[object Boolean]":
            if (has(booleanValue, value)) return spend(booleanValue(value) ? "true" : "false");
            break;
        case "[object BigInt]":
            if (has(bigintValue, value)) return big(bigintValue(value));
            break;
        case "[object Map]":
            if (has(mapSize, value)) return mapping(value, depth);
            break;
        case "[object Set]":
            if (has(setSize, value)) return collection(value, depth);
            break;
        case "[object ArrayBuffer]":
            if (getPrototypeOf(value) === BytesPrototype) return list(new Bytes(value), depth);
            break;
    }
    if (isView(value) && typedTag(value) !== undefined) return list(value, depth);
    return record(value, depth);
}

function member(value, key, depth) {
    switch (typeof value) {
        case "string":
            return quote(value);
        case "number":
            return spend(value - value === 0 ? "" + value : "null");
        case "boolean":
            return spend(value ? "true" : "false");
        case "undefined":
        case "symbol":
            return undefined;
        case "bigint":
            return big(value);
    }
    if (value === null) return spend("null");

    const toJson = value.toJSON;

    if (typeof toJson === "function") {
        const replaced = reflectApply(toJson, value, [StringOf(key)]);

        if (replaced !== value) {
            if ((typeof replaced !== "object" || replaced === null) && typeof replaced !== "function") return member(replaced, key, depth);
            value = replaced;
        }
    }
    if (typeof value === "function") return undefined;
    enter(value, depth);

    const prototype = getPrototypeOf(value);
    let text;

    if (isArray(value)) text = list(value, depth);
    else if (prototype === ObjectPrototype || prototype === null) text = record(value, depth);
    else text = special(value, depth);
    leave(value, depth);
    return text;
}

function plainly(value, limit) {
    const text = jsonStringify(value) ?? "null";

    if (text.length > limit) throw TOO_LARGE;
    return text;
}

/** The JSON text of a task's result, "null" for what has none; throws TOO_LARGE beyond `limit` characters. */
export function encode(value, limit, strict) {
    if (strict) return plainly(value, limit);
    room = limit;
    ancestors = null;
    try {
        return member(value, "", 0) ?? "null";
    } catch (error) {
        // The engine's own goes deeper than ours: some thousand levels deep, Maps and the like are as JSON knows them.
        if (!isPrototypeOf(RangeErrorPrototype, error)) throw error;
        return plainly(value, limit);
    }
}
