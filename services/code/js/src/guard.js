// SPDX-License-Identifier: Apache-2.0
// No code from strings: eval and every function constructor are replaced before any module is loaded, so that modules do
// not keep the real ones. (The engine's own switch, set by C, stands behind it, and the walls behind that.)
import { defineProperty, ErrorOf, getPrototypeOf, give, ownKeys, getOwnPropertyDescriptor } from "./primordials.js";
import { reflectSetPrototypeOf, setAdd, setHas, SetOf, setPrototypeOf, world } from "./primordials.js";

const prototypes = [
    Function.prototype,
    getPrototypeOf(async function () {}),
    getPrototypeOf(function* () {}),
    getPrototypeOf(async function* () {}),
];
const names = ["Function", "AsyncFunction", "GeneratorFunction", "AsyncGeneratorFunction"];

for (let i = 0; i < prototypes.length; i++) {
    const refuse = { [names[i]]: function () {
        throw new ErrorOf("Function constructor is not allowed in sandbox");
    } }[names[i]];

    defineProperty(refuse, "prototype", { value: prototypes[i], writable: false, enumerable: false, configurable: false });
    defineProperty(prototypes[i], "constructor", { value: refuse, writable: true, enumerable: false, configurable: true });
    if (i === 0) give("Function", refuse);
}
give("eval", { eval() {
    throw new ErrorOf("Code generation with eval() is not allowed in sandbox.");
} }.eval);

const builtins = new SetOf();
let never = false;

function collect(value, depth) {
    if ((typeof value !== "object" || value === null) && typeof value !== "function") return;
    if (value === world || setHas(builtins, value)) return;
    setAdd(builtins, value);
    if (depth === 0) return;
    for (const key of ownKeys(value)) {
        const property = getOwnPropertyDescriptor(value, key);
        if (property && "value" in property) collect(property.value, depth - 1);
    }
    collect(getPrototypeOf(value), depth - 1);
}

/** Last step of the loading: what a task must not see or change. */
export function hide() {
    for (const name of ["Bun", "globalThis", "global", "fetch", "XMLHttpRequest", "WebSocket"]) give(name, undefined);
    delete world.WebAssembly;
    delete Error.captureStackTrace;
    delete Error.prepareStackTrace;
    for (const key of ownKeys(world)) {
        const property = getOwnPropertyDescriptor(world, key);
        if (property && "value" in property) collect(property.value, 3);
    }
    for (const prototype of prototypes) collect(prototype, 2);
    defineProperty(Object, "setPrototypeOf", { value: { setPrototypeOf(target, prototype) {
        if (never || setHas(builtins, target)) return false;
        return setPrototypeOf(target, prototype);
    } }.setPrototypeOf });
    defineProperty(Reflect, "setPrototypeOf", { value: { setPrototypeOf(target, prototype) {
        if (never || setHas(builtins, target)) return false;
        return reflectSetPrototypeOf(target, prototype);
    } }.setPrototypeOf });
}

/** As upstream: no object at all gets another prototype. */
export function strictPrototypes() {
    never = true;
}

