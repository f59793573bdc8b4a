// SPDX-License-Identifier: Apache-2.0
// The built-ins as they were before a task ran: what the runtime itself calls must not be what a task put in their place.
// A method of a prototype is kept as a function whose first argument is the receiver.
const uncurry = Function.prototype.bind.bind(Function.prototype.call);

export const { parse: jsonParse, stringify: jsonStringify } = JSON;
export const { keys: objectKeys, getPrototypeOf, setPrototypeOf, defineProperty, freeze, create: objectCreate } = Object;
export const { apply: reflectApply, ownKeys, setPrototypeOf: reflectSetPrototypeOf } = Reflect;
export const { getOwnPropertyDescriptor } = Object;
export const isArray = Array.isArray;
export const isView = ArrayBuffer.isView;
export const ObjectPrototype = Object.prototype;
export const ErrorPrototype = Error.prototype;
export const tagOf = uncurry(Object.prototype.toString);
export const isPrototypeOf = uncurry(Object.prototype.isPrototypeOf);
export const hasOwn = uncurry(Object.prototype.hasOwnProperty);

export const { Map: MapOf, Set: SetOf, Proxy: ProxyOf, Promise: PromiseOf, Uint8Array: Bytes, Error: ErrorOf } = globalThis;
export const { TypeError: TypeErrorOf, RangeError: RangeErrorOf, SyntaxError: SyntaxErrorOf, String: StringOf, Number: NumberOf } = globalThis;
export const mapGet = uncurry(Map.prototype.get);
export const mapSet = uncurry(Map.prototype.set);
export const mapDelete = uncurry(Map.prototype.delete);
export const mapForEach = uncurry(Map.prototype.forEach);
export const mapSize = uncurry(getOwnPropertyDescriptor(Map.prototype, "size").get);
export const setHas = uncurry(Set.prototype.has);
export const setAdd = uncurry(Set.prototype.add);
export const setDelete = uncurry(Set.prototype.delete);
export const setForEach = uncurry(Set.prototype.forEach);
export const setSize = uncurry(getOwnPropertyDescriptor(Set.prototype, "size").get);
export const typedTag = uncurry(getOwnPropertyDescriptor(getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag).get);
export const numberValue = uncurry(Number.prototype.valueOf);
export const stringValue = uncurry(String.prototype.valueOf);
export const booleanValue = uncurry(Boolean.prototype.valueOf);
export const bigintValue = uncurry(BigInt.prototype.valueOf);
export const indexOf = uncurry(String.prototype.indexOf);
export const lastIndexOf = uncurry(String.prototype.lastIndexOf);
export const slice = uncurry(String.prototype.slice);
export const charCodeAt = uncurry(String.prototype.charCodeAt);
export const toLowerCase = uncurry(String.prototype.toLowerCase);
export const toUpperCase = uncurry(String.prototype.toUpperCase);
export const encodeComponent = encodeURIComponent;
export const now = Date.now;
export const { ceil, floor } = Math;

/** The global object, which a task has no name for (see hide() in guard.js). */
export const world = globalThis;

/** Puts a name into the global object as the engine's own are: not enumerable, but the user's to replace. */
export function give(name, value) {
    defineProperty(world, name, { value, writable: true, enumerable: false, configurable: true });
}
