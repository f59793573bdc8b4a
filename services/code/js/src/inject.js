// SPDX-License-Identifier: Apache-2.0
// What the packages get in place of a built-in that a task has under other rules: build.mjs puts this name into them.
import { locales } from "moment-locales";

const { setPrototypeOf } = Object;

export { setPrototypeOf as sandkeepSetPrototypeOf };

/** moment asks for a locale the first time that it is used, by a path. */
export function sandkeepMomentLocale(path) {
    locales[path.slice("./locale/".length)]();
}
