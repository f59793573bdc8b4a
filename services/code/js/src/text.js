// SPDX-License-Identifier: Apache-2.0
// Text and bytes: TextEncoder, TextDecoder, atob, btoa, crypto's randomness, structuredClone. UTF-8 is native.
import { charCodeAt, ErrorOf, freeze, give, isArray, isView, RangeErrorOf, StringOf, toLowerCase, TypeErrorOf, typedTag, Bytes } from "./primordials.js";
import { hasOwn, mapForEach, mapGet, MapOf, mapSet, mapSize, objectKeys, setForEach, SetOf, setAdd, setSize, tagOf } from "./primordials.js";
import { booleanValue, numberValue, stringValue, defineProperty } from "./primordials.js";

const fromCharCode = String.fromCharCode;
const trim = (text) => {
    let from = 0, to = text.length;

    while (from < to && charCodeAt(text, from) <= 32) from++;
    while (to > from && charCodeAt(text, to - 1) <= 32) to--;
    return text.slice(from, to);
};

export function named(name, message) {
    const error = new ErrorOf(message);

    defineProperty(error, "name", { value: name, writable: true, enumerable: false, configurable: true });
    return error;
}

class TextEncoder {
    get encoding() {
        return "utf-8";
    }
    encode(text = "") {
        return host.utf8(StringOf(text));
    }
    encodeInto(text, target) {
        if (typedTag(target) !== "Uint8Array") throw new TypeErrorOf("encodeInto needs a Uint8Array");
        let read = 0, written = 0;

        for (const character of StringOf(text)) {
            const bytes = host.utf8(character);

            if (written + bytes.length > target.length) break;
            target.set(bytes, written);
            written += bytes.length;
            read += character.length;
        }
        return { read, written };
    }
}

const LABELS = { __proto__: null };
for (const label of ["utf-8", "utf8", "unicode-1-1-utf-8", "x-unicode20utf8", "unicode11utf8"]) LABELS[label] = "utf-8";
for (const label of ["utf-16le", "utf-16", "ucs-2", "unicode", "csunicode", "iso-10646-ucs-2"]) LABELS[label] = "utf-16le";
for (const label of ["utf-16be", "unicodefffe"]) LABELS[label] = "utf-16be";
for (const label of ["windows-1252", "latin1", "iso-8859-1", "iso8859-1", "l1", "ascii", "us-ascii", "cp1252", "x-cp1252"]) LABELS[label] = "windows-1252";
const HIGH = [0x20ac, 0x81, 0x201a, 0x192, 0x201e, 0x2026, 0x2020, 0x2021, 0x2c6, 0x2030, 0x160, 0x2039, 0x152, 0x8d, 0x17d, 0x8f,
    0x90, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014, 0x2dc, 0x2122, 0x161, 0x203a, 0x153, 0x9d, 0x17e, 0x178];

function bytesOf(input) {
    if (input === undefined) return new Bytes(0);
    if (isView(input)) return new Bytes(input.buffer, input.byteOffset, input.byteLength);
    return new Bytes(input);
}

// How many bytes at the end are the beginning of a character that is not complete.
function openEnd(bytes) {
    const length = bytes.length;

    for (let back = 1; back <= 3 && back <= length; back++) {
        const byte = bytes[length - back];

        if ((byte & 0xc0) === 0x80) continue;
        const need = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;

        return need > back ? back : 0;
    }
    return 0;
}

class TextDecoder {
    #encoding;
    #fatal;
    #ignoreBom;
    #rest = new Bytes(0);
    #started = false;
    constructor(label = "utf-8", options = {}) {
        const encoding = LABELS[toLowerCase(trim(StringOf(label)))];

        if (encoding === undefined) throw new RangeErrorOf(`The "${label}" encoding is not supported`);
        this.#encoding = encoding;
        this.#fatal = !!options?.fatal;
        this.#ignoreBom = !!options?.ignoreBOM;
    }
    get encoding() {
        return this.#encoding;
    }
    get fatal() {
        return this.#fatal;
    }
    get ignoreBOM() {
        return this.#ignoreBom;
    }
    decode(input, options) {
        const stream = !!options?.stream;
        let bytes = bytesOf(input), text;

        if (this.#rest.length > 0) {
            const joined = new Bytes(this.#rest.length + bytes.length);

            joined.set(this.#rest, 0);
            joined.set(bytes, this.#rest.length);
            bytes = joined;
        }
        const wide = this.#encoding === "utf-16le" || this.#encoding === "utf-16be";
        const open = !stream ? 0 : wide ? bytes.length % 2 : this.#encoding === "utf-8" ? openEnd(bytes) : 0;

        this.#rest = bytes.slice(bytes.length - open);
        bytes = bytes.subarray(0, bytes.length - open);
        if (this.#encoding === "utf-8") text = host.text(bytes, this.#fatal);
        else if (wide) text = this.#wide(bytes);
        else text = this.#narrow(bytes);
        if (text === undefined) {
            this.#started = false;
            this.#rest = new Bytes(0);
            throw new TypeErrorOf("The encoded data was not valid for encoding " + this.#encoding);
        }
        if (!this.#started && !this.#ignoreBom && charCodeAt(text, 0) === 0xfeff) text = text.slice(1);
        this.#started = stream && (this.#started || text !== "");
        return text;
    }
    #wide(bytes) {
        const big = this.#encoding === "utf-16be" ? 1 : 0;
        let text = "", i = 0;

        for (; i + 1 < bytes.length; i += 2) text += fromCharCode(bytes[i + big] | (bytes[i + 1 - big] << 8));
        const whole = text.isWellFormed() && i === bytes.length;

        if (!whole && this.#fatal) return undefined;
        return text.toWellFormed() + (i < bytes.length ? "\ufffd" : "");
    }
    #narrow(bytes) {
        let text = "";

        for (let i = 0; i < bytes.length; i++) text += fromCharCode(bytes[i] >= 0x80 && bytes[i] < 0xa0 ? HIGH[bytes[i] - 0x80] : bytes[i]);
        return text;
    }
}

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const VALUES = { __proto__: null };
for (let i = 0; i < 64; i++) VALUES[ALPHABET[i]] = i;

function btoa(data) {
    const text = StringOf(data);
    let out = "";

    for (let i = 0; i < text.length; i += 3) {
        const a = charCodeAt(text, i), b = charCodeAt(text, i + 1), c = charCodeAt(text, i + 2); // NaN past the end

        if (a > 255 || b > 255 || c > 255) throw named("InvalidCharacterError", "Invalid character");
        const bits = (a << 16) | (b << 8) | c;

        out += ALPHABET[bits >> 18] + ALPHABET[(bits >> 12) & 63] + (i + 1 < text.length ? ALPHABET[(bits >> 6) & 63] : "=") +
            (i + 2 < text.length ? ALPHABET[bits & 63] : "=");
    }
    return out;
}

function atob(data) {
    const input = StringOf(data);
    let text = "", out = "", bits = 0, count = 0;

    for (let i = 0; i < input.length; i++) {
        const code = charCodeAt(input, i);

        if (code !== 32 && code !== 9 && code !== 10 && code !== 12 && code !== 13) text += input[i];
    }
    if (text.length % 4 === 0 && text.endsWith("==")) text = text.slice(0, -2);
    else if (text.length % 4 === 0 && text.endsWith("=")) text = text.slice(0, -1);
    if (text.length % 4 === 1) throw named("InvalidCharacterError", "The string to be decoded is not correctly encoded.");
    for (let i = 0; i < text.length; i++) {
        const value = VALUES[text[i]];

        if (value === undefined) throw named("InvalidCharacterError", "The string to be decoded is not correctly encoded.");
        bits = ((bits << 6) | value) & 0xffffff;
        count += 6;
        if (count >= 8) {
            count -= 8;
            out += fromCharCode((bits >> count) & 255);
        }
    }
    return out;
}

const RANDOM_MAX = 65536;
const crypto = freeze({
    getRandomValues(array) {
        const tag = isView(array) ? typedTag(array) : undefined;

        if (tag === undefined || tag.startsWith("Float")) throw named("TypeMismatchError", "getRandomValues needs an integer typed array");
        if (array.byteLength > RANDOM_MAX) throw named("QuotaExceededError", `getRandomValues gives at most ${RANDOM_MAX} bytes`);
        new Bytes(array.buffer, array.byteOffset, array.byteLength).set(host.random(array.byteLength));
        return array;
    },
    randomUUID() {
        const bytes = host.random(16);
        let text = "";

        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        for (let i = 0; i < 16; i++) {
            const hex = bytes[i].toString(16);

            text += (i === 4 || i === 6 || i === 8 || i === 10 ? "-" : "") + (hex.length < 2 ? "0" + hex : hex);
        }
        return text;
    },
});

// Math.random: sfc32, two words a number. A forked child would repeat its siblings' sequence with the engine's own.
let a = 0, b = 0, c = 0, counter = 1;

function word() {
    const t = (((a + b) | 0) + counter) | 0;

    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = ((c << 21) | (c >>> 11)) | 0;
    c = (c + t) | 0;
    return t >>> 0;
}

export function seed(w0, w1, w2, w3) {
    a = w0 | 0;
    b = w1 | 0;
    c = w2 | 0;
    counter = w3 | 0;
    for (let i = 0; i < 15; i++) word();
}

defineProperty(Math, "random", { value: { random() {
    return ((word() >>> 5) * 67108864 + (word() >>> 6)) / 9007199254740992;
} }.random });

function cloneError(value) {
    return named("DataCloneError", `${typeof value === "symbol" ? "A symbol" : typeof value === "function" ? "A function" : "An object"} could not be cloned.`);
}

const VIEWS = { __proto__: null };
for (const View of [Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array, Float64Array, BigInt64Array,
    BigUint64Array]) VIEWS[View.name] = View;
const ERRORS = { __proto__: null, Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };
const { Date: DateOf, RegExp: RegExpOf, ArrayBuffer: BufferOf, DataView: DataViewOf, Object: ObjectOf } = globalThis;

function cloneInto(target, value, seen) {
    for (const key of objectKeys(value)) {
        const copy = clone(value[key], seen);

        if (key === "__proto__") defineProperty(target, key, { value: copy, writable: true, enumerable: true, configurable: true });
        else target[key] = copy;
    }
    return target;
}

function clone(value, seen) {
    if (typeof value === "function" || typeof value === "symbol") throw cloneError(value);
    if (typeof value !== "object" || value === null) return value;
    const before = mapGet(seen, value);

    if (before !== undefined) return before;
    const keep = (copy) => {
        mapSet(seen, value, copy);
        return copy;
    };
    if (isArray(value)) return cloneInto(keep(new Array(value.length)), value, seen);
    switch (tagOf(value)) {
        case "[object Date]":
            return keep(new DateOf(+value));
        case "[object RegExp]":
            return keep(new RegExpOf(value.source, value.flags));
        case "[object Boolean]":
            return keep(ObjectOf(booleanValue(value)));
        case "[object Number]":
            return keep(ObjectOf(numberValue(value)));
        case "[object String]":
            return keep(ObjectOf(stringValue(value)));
        case "[object ArrayBuffer]":
            return keep(value.slice(0));
        case "[object DataView]":
            return keep(new DataViewOf(clone(value.buffer, seen), value.byteOffset, value.byteLength));
        case "[object Error]": {
            const copy = keep(new (ERRORS[value.name] ?? ErrorOf)(value.message));

            defineProperty(copy, "stack", { value: value.stack, writable: true, enumerable: false, configurable: true });
            if (hasOwn(value, "cause")) defineProperty(copy, "cause", { value: clone(value.cause, seen), writable: true, enumerable: false, configurable: true });
            return copy;
        }
        case "[object Map]":
            if (mapSize(value) >= 0) {
                const copy = keep(new MapOf());

                mapForEach(value, (item, key) => mapSet(copy, clone(key, seen), clone(item, seen)));
                return copy;
            }
            break;
        case "[object Set]":
            if (setSize(value) >= 0) {
                const copy = keep(new SetOf());

                setForEach(value, (item) => setAdd(copy, clone(item, seen)));
                return copy;
            }
            break;
        case "[object Promise]":
        case "[object WeakMap]":
        case "[object WeakSet]":
        case "[object WeakRef]":
        case "[object Generator]":
            throw cloneError(value);
    }
    if (isView(value)) {
        const View = VIEWS[typedTag(value)];

        return keep(new View(clone(value.buffer, seen), value.byteOffset, value.length));
    }
    return cloneInto(keep({}), value, seen);
}

give("TextEncoder", TextEncoder);
give("TextDecoder", TextDecoder);
give("atob", { atob }.atob);
give("btoa", { btoa }.btoa);
give("crypto", crypto);
give("structuredClone", function structuredClone(value) {
    if (arguments.length === 0) throw new TypeErrorOf("structuredClone needs a value");
    return clone(value, new MapOf());
});
