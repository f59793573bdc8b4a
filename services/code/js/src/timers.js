// SPDX-License-Identifier: Apache-2.0
// setTimeout and its family. The clock and the order are the native loop's; here are the handlers by their number.
import { ErrorOf, floor, give, mapDelete, mapGet, MapOf, mapSet, NumberOf, PromiseOf, reflectApply, TypeErrorOf } from "./primordials.js";
import { briefly } from "./errors.js";

const DELAY_MAX = 10000;
const LONGEST = 2147483647; // beyond it, as in browsers and node: at once

const timers = new MapOf();
let last = 0;

function millis(value) {
    const ms = NumberOf(value);

    return ms >= 1 && ms <= LONGEST ? floor(ms) : 1;
}

function start(handler, ms, every, args) {
    const id = ++last;

    mapSet(timers, id, { handler, args, every });
    host.timer(id, ms);
    return id;
}

function clear(id) {
    mapDelete(timers, NumberOf(id));
}

give("setTimeout", function setTimeout(handler, ms, ...args) {
    if (typeof handler !== "function") throw new TypeErrorOf("setTimeout expects a function");
    return start(handler, millis(ms), 0, args);
});
give("setInterval", function setInterval(handler, ms, ...args) {
    if (typeof handler !== "function") throw new TypeErrorOf("setInterval expects a function");
    return start(handler, millis(ms), millis(ms), args);
});
give("clearTimeout", function clearTimeout(id) {
    clear(id);
});
give("clearInterval", function clearInterval(id) {
    clear(id);
});
give("delay", function delay(ms) {
    const wait = NumberOf(ms);

    if (wait > DELAY_MAX) throw new ErrorOf(`Delay must be <= ${DELAY_MAX}ms`);
    return new PromiseOf((resolve) => {
        start(resolve, millis(wait), 0, []);
    });
});
// An await of nothing is the engine's own, whatever a task did to Promise.prototype.then.
give("queueMicrotask", function queueMicrotask(callback) {
    if (typeof callback !== "function") throw new TypeErrorOf("queueMicrotask expects a function");
    (async () => {
        await undefined;
        callback();
    })();
});

/** The native loop's: the timer `id` is due. */
export function fire(id) {
    const timer = mapGet(timers, id);

    if (timer === undefined) return;
    if (timer.every === 0) mapDelete(timers, id);
    try {
        reflectApply(timer.handler, undefined, timer.args);
    } catch (error) {
        host.log("Uncaught " + briefly(error));
    }
    if (timer.every !== 0 && mapGet(timers, id) === timer) host.timer(id, timer.every);
}
