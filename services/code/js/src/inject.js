// SPDX-License-Identifier: Apache-2.0
// What the packages get in place of a built-in that a task has under other rules: build.mjs puts this name into them.
const { setPrototypeOf } = Object;

export { setPrototypeOf as sandkeepSetPrototypeOf };
