// SPDX-License-Identifier: Apache-2.0
// Requests through the host's broker: the task has no network. At most FLIGHT_MAX are with the broker at a time, the rest
// wait here; how many a task may make at all is checked here and, where it counts, there.
import { ErrorOf, floor, give, indexOf, jsonParse, jsonStringify, mapDelete, mapForEach, mapGet, MapOf, mapSet, NumberOf, objectKeys, PromiseOf } from "./primordials.js";
import { StringOf, toLowerCase, toUpperCase, slice, freeze, defineProperty, world } from "./primordials.js";

const FLIGHT_MAX = 4;

const waiting = new MapOf(); // id -> frame text, in order
const pending = new MapOf(); // id -> {resolve, reject, failure}
let limits = { requestMax: 0, requestBytes: 0, requestMs: 0 };
let made = 0, flying = 0, lost = "";

export function setLimits(given) {
    limits = given;
}

function send(id, text) {
    flying++;
    mapDelete(waiting, id);
    host.send(text);
}

function settle(id) {
    const request = mapGet(pending, id);

    if (request !== undefined) mapDelete(pending, id);
    return request;
}

// The error was made at the call: where the answer comes in, no code of the task is on the stack that could be told.
function fail(request, message) {
    defineProperty(request.failure, "message", { __proto__: null, value: message, writable: true, enumerable: false, configurable: true });
    request.reject(request.failure);
}

function byteLength(text) {
    return text.length * 3 <= limits.requestBytes ? 0 : host.utf8(text).length;
}

function headersOf(given) {
    const headers = {};
    let typed = false;

    if (typeof given !== "object" || given === null) return { headers, typed };
    const keys = objectKeys(given);

    for (let i = 0; i < keys.length; i++) {
        const value = given[keys[i]];

        if (value === undefined || value === null) continue;
        if (toLowerCase(keys[i]) === "content-type") typed = true;
        defineProperty(headers, keys[i], { value: StringOf(value), enumerable: true });
    }
    return { headers, typed };
}

function timeoutOf(options) {
    const given = options.timeoutMs !== undefined && options.timeoutMs !== null ? NumberOf(options.timeoutMs) : NumberOf(options.timeout) * 1000;

    if (!(given > 0)) return limits.requestMs;
    return given < limits.requestMs ? floor(given) || 1 : limits.requestMs;
}

function schemeOf(url) {
    return toLowerCase(slice(url, 0, indexOf(url, ":") + 1));
}

async function httpRequest(url, options = {}) {
    const target = StringOf(url);
    const given = typeof options === "object" && options !== null ? options : {};

    if (made >= limits.requestMax) throw new ErrorOf("Request limit exceeded");
    const id = ++made;
    const { headers, typed } = headersOf(given.headers);
    let body = null;

    if (given.body !== undefined && given.body !== null) {
        body = typeof given.body === "object" ? jsonStringify(given.body) : StringOf(given.body);
        if (!typed) headers["Content-Type"] = "application/json";
        if (byteLength(body) > limits.requestBytes) {
            const scheme = schemeOf(target);

            throw new ErrorOf(scheme === "http:" || scheme === "https:" ? "Request body too large" : "Protocol not allowed");
        }
    }
    if (lost !== "") throw new ErrorOf(lost);
    const frame = { __proto__: null, id, type: "http_request", url: target, method: toUpperCase(StringOf(given.method ?? "GET")), headers, timeoutMs: timeoutOf(given) };

    if (body !== null) frame.body = body;
    if (given.followRedirects === true) frame.followRedirects = true;
    // A toJSON that the task put on all objects would change what is sent, nothing else.
    const text = jsonStringify(frame);
    const failure = new ErrorOf("");

    return await new PromiseOf((resolve, reject) => {
        mapSet(pending, id, { resolve, reject, failure });
        mapSet(waiting, id, text);
        if (flying < FLIGHT_MAX) send(id, text);
    });
}

/** The native loop's: one frame of the broker. False when it is no answer to anything: the stream is of no use then. */
export function answer(text) {
    let reply;

    try {
        reply = jsonParse(text);
    } catch {
        return false;
    }
    const request = typeof reply === "object" && reply !== null ? settle(reply.id) : undefined;

    if (request === undefined) return false;
    flying--;
    let next, frame;

    mapForEach(waiting, (value, id) => {
        if (next === undefined) {
            next = id;
            frame = value;
        }
    });
    if (next !== undefined) send(next, frame);
    if (reply.ok === true) request.resolve({ status: reply.status, statusText: reply.statusText ?? "", headers: reply.headers ?? {}, data: reply.data ?? "" });
    else fail(request, StringOf(reply.message ?? "Request failed"));
    return true;
}

/** The native loop's: the connection to the broker ended; whatever waits for it fails. */
export function disconnect(message) {
    lost = message;
    flying = 0;
    mapForEach(pending, (request, id) => {
        mapDelete(pending, id);
        mapDelete(waiting, id);
        fail(request, message);
    });
}

give("httpRequest", httpRequest);
defineProperty(world, "SystemHelper", { value: freeze({ httpRequest }), writable: false, enumerable: false, configurable: false });
