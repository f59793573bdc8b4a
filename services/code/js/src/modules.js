// SPDX-License-Identifier: Apache-2.0
// The modules that a task may ask for. Loaded once, in the template; what require() gives is read-only on its surface.
import * as bufferModule from "buffer/";
import crypto_js from "crypto-js";
import dayjs from "dayjs";
import lodash from "lodash";
import moment from "moment";
import qs from "qs";
import querystring from "querystring/";
import urlModule from "url/";
import { URL, URLSearchParams } from "whatwg-url";
import * as uuid from "uuid";
import { ErrorOf, freeze, give, indexOf, mapGet, MapOf, mapSet, ProxyOf, StringOf, toLowerCase } from "./primordials.js";

const { Buffer } = bufferModule;

// base64url, which node has and this package lacks; its decoder takes both alphabets already.
const isUrlBase64 = (encoding) => typeof encoding === "string" && toLowerCase(encoding) === "base64url";
const plain = { isEncoding: Buffer.isEncoding, from: Buffer.from, byteLength: Buffer.byteLength, toString: Buffer.prototype.toString, write: Buffer.prototype.write };
Buffer.isEncoding = (encoding) => isUrlBase64(encoding) || plain.isEncoding(encoding);
Buffer.from = function from(value, encoding, length) {
    return plain.from(value, isUrlBase64(encoding) ? "base64" : encoding, length);
};
Buffer.byteLength = function byteLength(value, encoding) {
    return plain.byteLength.call(Buffer, value, isUrlBase64(encoding) ? "base64" : encoding);
};
Buffer.prototype.toString = function toString(encoding, start, end) {
    if (!isUrlBase64(encoding)) return plain.toString.apply(this, arguments);
    return plain.toString.call(this, "base64", start, end).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
};
Buffer.prototype.toLocaleString = Buffer.prototype.toString;
Buffer.prototype.write = function write(...args) {
    return plain.write.apply(this, args.map((value) => (isUrlBase64(value) ? "base64" : value)));
};

give("Buffer", Buffer);
give("URL", URL);
give("URLSearchParams", URLSearchParams);

const available = {
    __proto__: null,
    buffer: { ...bufferModule, default: undefined, atob: globalThis.atob, btoa: globalThis.btoa },
    "crypto-js": crypto_js,
    dayjs,
    lodash,
    moment,
    qs,
    querystring: { ...querystring, escape: encodeURIComponent, unescape: decodeURIComponent },
    url: { ...urlModule, URL, URLSearchParams },
    uuid: { ...uuid },
};

const refuse = () => {
    throw new ErrorOf("Sandbox module exports are read-only");
};
const readOnly = freeze({ __proto__: null, set: refuse, defineProperty: refuse, deleteProperty: refuse, setPrototypeOf: refuse, preventExtensions: refuse });
const allowed = new MapOf();

/** Those that this deployment lets tasks use, comma-separated; answers the first that is not here. */
export function allow(names) {
    let from = 0;

    while (from < names.length) {
        const comma = indexOf(names, ",", from);
        const to = comma < 0 ? names.length : comma;
        const name = names.slice(from, to);

        if (available[name] === undefined) return name;
        mapSet(allowed, name, new ProxyOf(available[name], readOnly));
        from = to + 1;
    }
    return undefined;
}

function check(name) {
    const exports = typeof name === "string" ? mapGet(allowed, name) : undefined;

    if (exports === undefined) throw new ErrorOf(`Module '${StringOf(name)}' is not allowed in sandbox`);
    return exports;
}

function require(name) {
    return check(name);
}
require.resolve = function resolve(name) {
    check(name);
    return name;
};
give("require", freeze(require));
