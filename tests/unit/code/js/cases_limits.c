/* SPDX-License-Identifier: Apache-2.0
 *
 * Time, output, log and memory. */
#include "tests/unit/code/js/cases.h"

#define TIMED_OUT                                                                                                      \
    .fails = "timeout", .message = "Script execution timed out after 300ms", .type = "TimeoutError", .timeout_ms = 300
#define BOMB(text)                                                                                                     \
    {                                                                                                                  \
        "memory: " text, "function main() { " text " }", NULL,                                                         \
            .fails = "memory", .part = "Memory limit exceeded: Out of memory", .type = "RangeError", .memory_mb = 128  \
    }

const struct js_case cases_limits[] = {
    {"endless loop", "function main() { while (true) {} }", NULL, TIMED_OUT},
    {"endless loop with a log",
     "function main() { console.log('a'); console.log('b \\\"q\\\"'); for (;;) Math.sqrt(2) }", NULL, TIMED_OUT,
     .log = "a\nb \"q\""},
    {"endless loop that logs", "function main() { for (;;) console.log('line') }", NULL, TIMED_OUT, .log = "*"},
    {"endless loop at the top", "for (;;) {}", NULL, TIMED_OUT},
    {"endless loop in a timer", "async function main() { setTimeout(() => { for (;;); }, 1); await delay(9000) }", NULL,
     TIMED_OUT},
    {"endless regular expression", "function main() { return /^(a+)+$/.test('a'.repeat(40) + 'b') }", NULL, TIMED_OUT},
    {"endless microtasks", "async function main() { for (;;) await null }", NULL, TIMED_OUT},
    {"endless recursion, caught", "function main() { const f = () => { try { f() } finally { f() } }; f() }", NULL,
     TIMED_OUT},
    {"endless catching", "function main() { for (;;) try { for (;;) throw 1 } catch {} }", NULL, TIMED_OUT},
    {"sleep past the limit", "async function main() { await delay(5000); return 1 }", NULL, TIMED_OUT},
    {"a promise that never settles", "function main() { return new Promise(() => {}) }", NULL, TIMED_OUT},
    {"a then that never answers", "function main() { return { then() {} } }", NULL, TIMED_OUT},
    {"a task that ends in time", "async function main() { await delay(20); return 'ok' }", NULL, "\"ok\"",
     .timeout_ms = 5000},

    {"output too large", "function main() { return 'x'.repeat(2000) }", NULL, .fails = "output",
     .message = "Output too large (limit: 1000 bytes)", .output_bytes = 1000},
    {"output of many bytes a character", "function main() { return '\\u4f60'.repeat(400) }", NULL, .fails = "output",
     .message = "Output too large (limit: 1000 bytes)", .output_bytes = 1000},
    {"output and log together", "function main() { console.log('y'.repeat(600)); return 'x'.repeat(500) }", NULL,
     .fails = "output", .message = "Output too large (limit: 1000 bytes)", .output_bytes = 1000, .log = "*"},
    {"message too large", "function main() { throw new Error('x'.repeat(5000)) }", NULL, .fails = "output",
     .message = "Output too large (limit: 1000 bytes)", .output_bytes = 1000},
    {"output that fits", "function main() { return 'x'.repeat(900).length }", NULL, "900", .output_bytes = 1000},
    {"output that grows for ever",
     "function main() { const a = []; for (let i = 0; i < 40; i++) a.push(a.slice()); return { toJSON() { return "
     "[this, this] } } && new Array(3e6).fill('abcdef') }",
     NULL, .fails = "output", .message = "Output too large (limit: 10485760 bytes)"},
    {"strict output too large", "function main() { return 'x'.repeat(2000) }", NULL, .fails = "output",
     .message = "Output too large (limit: 1000 bytes)", .output_bytes = 1000, .strict = true},

    {"log lines dropped whole",
     "function main() { console.log('12345'); console.log('1234567890'); console.log('6789'); console.log('x'); return "
     "1 }",
     NULL, "1", .log = "12345\n6789", .log_bytes = 10},
    {"a thousand lines", "function main() { for (let i = 0; i < 1000; i++) console.log(i); return 1 }", NULL, "1",
     .log = "*"},
    {"log of two MiB",
     "function main() { for (let i = 0; i < 2048; i++) console.log('\\u0001'.repeat(1023)); return 1 }", NULL, "1",
     .log = "*"},

    BOMB("const a = []; for (;;) a.push(new Array(1e5).fill(1))"),
    BOMB("const a = []; for (;;) a.push('x'.repeat(1e6) + a.length + 'y'.repeat(1e6).toUpperCase())"),
    BOMB("const a = []; for (;;) a.push(new Uint8Array(1e7).fill(1))"),
    {"memory: 40 buffers of 10 MB",
     "async function main() { const a = []; for (let i = 0; i < 40; i++) { a.push(Buffer.alloc(10 << 20, 1)); await "
     "delay(1) } return a.length }",
     NULL, .fails = "memory", .part = "Memory limit exceeded: Out of memory", .memory_mb = 128},
    {"memory: 10 MB is fine", "function main() { return Buffer.alloc(10 << 20, 1).length }", NULL, "10485760",
     .memory_mb = 128},
    {"memory: caught, goes on",
     "function main() { try { const a = []; for (;;) a.push(new Uint8Array(1e7).fill(1)) } catch (e) { return e.name } "
     "}",
     NULL, "\"RangeError\"", .memory_mb = 128},
    {"a text too long", "function main() { return 'x'.repeat(2 ** 31) }", NULL, .fails = "memory",
     .part = "Memory limit exceeded: Out of memory", .type = "RangeError"},
    {"join of a billion", "function main() { return new Array(1e9).join('x').length }", NULL, .part = "",
     .fails = "memory", .memory_mb = 128},
    {"a long sparse array", "function main() { const a = []; a.length = 1e8; return a }", NULL, .fails = "output",
     .message = "Output too large (limit: 10485760 bytes)"},
    {"a wide proxy",
     "function main() { return new Proxy([], { get: (t, k) => k === 'length' ? 2 ** 32 : k === 'toJSON' ? undefined : "
     "'x' }) }",
     NULL, .fails = "output", .message = "Output too large (limit: 10485760 bytes)", .timeout_ms = 60000},
    {"a million timers",
     "async function main() { let n = 0; for (let i = 0; i < 1e6; i++) setTimeout(() => n++, 5e4); return n }", NULL,
     "0", .timeout_ms = 60000},
    {"hostile locales",
     "function main() { const o = []; for (const l of ['x'.repeat(1e5), '\\ud800', '../../etc', 'en-' + "
     "'a-'.repeat(1e4), 'zz-ZZ', 'en-u-ca-' + 'x'.repeat(9)]) try { o.push(new Date(0).toLocaleString(l).length > 0) } "
     "catch (e) { o.push(e.name) } return o }",
     NULL, "[\"RangeError\",\"RangeError\",\"RangeError\",\"RangeError\",true,\"RangeError\"]"},
    {"a lot of arithmetic",
     "function main() { let s = 0; for (let i = 0; i < 3e6; i++) s += Math.sqrt(i); return Math.round(s) }", NULL,
     "3464100749", .timeout_ms = 20000},
};
CASES(cases_limits);
