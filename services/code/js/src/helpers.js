// SPDX-License-Identifier: Apache-2.0
// The small helpers of the sandbox, and what is there of node's process.
import { ceil, encodeComponent, ErrorOf, freeze, give, now, StringOf } from "./primordials.js";

give("countToken", function countToken(text) {
    return ceil(StringOf(text).length / 4);
});
give("strToBase64", function strToBase64(text, prefix = "") {
    return StringOf(prefix) + host.base64(StringOf(text));
});
give("createHmac", function createHmac(algorithm, secret) {
    const timestamp = StringOf(now());
    const key = StringOf(secret);
    const digest = host.hmac(StringOf(algorithm), key, timestamp + "\n" + key);

    if (digest === undefined) throw new ErrorOf("Invalid digest: " + StringOf(algorithm));
    return { timestamp, sign: encodeComponent(digest) };
});
give("process", freeze({
    env: freeze({}),
    cwd: freeze(() => "/sandbox"),
    version: "v20.0.0",
    platform: "linux",
}));
