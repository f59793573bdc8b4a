/* SPDX-License-Identifier: Apache-2.0
 *
 * What a task is refused, in upstream's words, and what must not be refused. The walls are not here: the kernel's are
 * tested where they stand. */
#include "tests/unit/code/js/cases.h"

#define NO_FUNCTION "Function constructor is not allowed in sandbox"
#define NO_IMPORT   "Dynamic import() is not allowed in sandbox. Use require() instead."
#define BLOCKED(module)                                                                                                \
    {                                                                                                                  \
        "require " module, "function main() { return require('" module "') }", NULL,                                   \
            .message = "Module '" module "' is not allowed in sandbox"                                                 \
    }
#define IMPORT(code)                                                                                                   \
    {                                                                                                                  \
        "refused: " code, "async function main() { return " code " }", NULL, .message = NO_IMPORT                      \
    }
#define NO_IMPORT_IN(code, result)                                                                                     \
    {                                                                                                                  \
        "runs: " code, code, NULL, result                                                                              \
    }

const struct js_case cases_guard[] = {
    BLOCKED("child_process"),
    BLOCKED("fs"),
    BLOCKED("net"),
    BLOCKED("http"),
    BLOCKED("https"),
    BLOCKED("axios"),
    BLOCKED("node-fetch"),
    BLOCKED("node:fs"),
    BLOCKED("../x"),
    BLOCKED("lodash/fp"),
    BLOCKED("moment/locale/zh-cn"),
    BLOCKED("__proto__"),
    BLOCKED("constructor"),
    {"require of no text", "function main() { return require({ toString() { return 'lodash' } }) }", NULL,
     .message = "Module 'lodash' is not allowed in sandbox"},
    {"require.resolve", "function main() { return require.resolve('child_process') }", NULL,
     .message = "Module 'child_process' is not allowed in sandbox"},
    {"require.resolve of ours", "function main() { return require.resolve('lodash') }", NULL, "\"lodash\""},
    {"require has no more",
     "function main() { return [typeof require.cache, typeof require.extensions, typeof require.main] }", NULL,
     "[\"undefined\",\"undefined\",\"undefined\"]"},
    {"undefined on purpose",
     "function main() { return [Bun, globalThis, global, fetch, XMLHttpRequest, WebSocket].map((x) => typeof x).join() "
     "}",
     NULL, "\"undefined,undefined,undefined,undefined,undefined,undefined\""},
    {"absent",
     "function main() { return [typeof window, typeof self, typeof module, typeof exports, typeof __dirname, typeof "
     "WebAssembly, typeof importScripts, typeof host, typeof entry, typeof Deno].every((t) => t === 'undefined') }",
     NULL, "true"},
    {"assigning globalThis.process", "function main() { globalThis.process = { env: {} } }", NULL, .type = "TypeError",
     .part = ""},
    {"process",
     "function main() { return [Object.keys(process.env).length, Object.isFrozen(process), "
     "Object.isFrozen(process.env), process.cwd(), process.platform, typeof process.version, process.env.PATH === "
     "undefined, process.env.SANDBOX_TOKEN === undefined] }",
     NULL, "[0,true,true,\"/sandbox\",\"linux\",\"string\",true,true]"},
    {"process has no more",
     "function main() { return ['binding', 'dlopen', '_linkedBinding', 'kill', 'chdir', 'exit', 'send', 'disconnect', "
     "'abort', 'setuid', 'reallyExit', 'mainModule'].every((n) => process[n] === undefined) }",
     NULL, "true"},
    {"process.env is frozen", "function main() { process.env.X = '1' }", NULL, .type = "TypeError", .part = ""},
    {"process.exit", "function main() { process.exit(1) }", NULL, .type = "TypeError", .part = ""},

    {"eval", "function main() { return eval('1 + 1') }", NULL,
     .message = "Code generation with eval() is not allowed in sandbox."},
    {"eval by another name", "function main() { return (0, eval)('1 + 1') }", NULL,
     .message = "Code generation with eval() is not allowed in sandbox."},
    {"new Function", "function main() { return new Function('return 1')() }", NULL, .message = NO_FUNCTION},
    {"Function", "function main() { return Function('return 1')() }", NULL, .message = NO_FUNCTION},
    {"constructor chain", "function main() { return ({}).constructor.constructor('return process')() }", NULL,
     .message = NO_FUNCTION},
    {"[].fill.constructor",
     "function main() { return [].fill.constructor('return process')().mainModule.require('child_process') }", NULL,
     .message = NO_FUNCTION},
    {"Object.constructor.constructor", "function main() { return Object.constructor.constructor('return this')() }",
     NULL, .message = NO_FUNCTION},
    {"require.__proto__.constructor", "function main() { return require.__proto__.constructor('return process')() }",
     NULL, .message = NO_FUNCTION},
    {"require.constructor", "function main() { return require.constructor('return process')() }", NULL,
     .message = NO_FUNCTION},
    {"async constructor", "function main() { return (async function () {}).constructor('return 1')() }", NULL,
     .message = NO_FUNCTION},
    {"generator constructor", "function main() { return (function* () {}).constructor('yield 1')() }", NULL,
     .message = NO_FUNCTION},
    {"async generator constructor", "function main() { return (async function* () {}).constructor('yield 1')() }", NULL,
     .message = NO_FUNCTION},
    {"Reflect.construct", "function main() { return Reflect.construct(Function, ['return 1'])() }", NULL,
     .message = NO_FUNCTION},
    {"the class of a function's class",
     "function main() { return Object.getPrototypeOf((async () => {}).constructor).constructor('return 1')() }", NULL,
     .message = NO_FUNCTION},
    {"constructor of a native", "function main() { return SystemHelper.httpRequest.constructor('return 1')() }", NULL,
     .message = NO_FUNCTION},
    {"constructor of console", "function main() { return console.log.constructor('return this')() }", NULL,
     .message = NO_FUNCTION},
    {"a subclass of Function", "function main() { return new (class extends Function {})('return 1')() }", NULL,
     .message = NO_FUNCTION},
    {"Function still tells functions",
     "function main() { return [(() => 1) instanceof Function, Function.prototype === Object.getPrototypeOf(main), "
     "typeof Function, main.constructor === Function] }",
     NULL, "[true,true,\"function\",true]"},
    {"timer of text", "function main() { setTimeout('return process', 0) }", NULL,
     .message = "setTimeout expects a function"},
    {"_.template", "function main() { return require('lodash').template('<%= x %>')({ x: 1 }) }", NULL,
     .message = NO_FUNCTION},

    IMPORT("import('fs')"),
    IMPORT("import(\"child_process\")"),
    IMPORT("import(\"os\")"),
    IMPORT("import/**/(\"child_process\")"),
    IMPORT("import/* comment */(\"os\")"),
    IMPORT("import/* comment */\n(\"os\")"),
    IMPORT("import// comment\n(\"os\")"),
    IMPORT("`${import('fs')}`"),
    IMPORT("(() => import('fs'))"),
    IMPORT("import ( 'fs' )"),
    {"line of import()", "// first\nfunction main() {\n  const a = 1;\n  return import(\n'fs') }", NULL,
     .message = NO_IMPORT, .line = 4, .traceback = "Error: " NO_IMPORT "\n    at code.js:4"},
    {"import() that is not reached", "function main() { if (0) import('fs'); return 1 }", NULL, .message = NO_IMPORT},
    NO_IMPORT_IN("const text = \"import('fs')\"; function main() { return text.length }", "12"),
    NO_IMPORT_IN("const text = `import('fs')`; function main() { return text.length }", "12"),
    NO_IMPORT_IN("// import('fs')\nfunction main() { return 1 }", "1"),
    NO_IMPORT_IN("/* import('fs') */ function main() { return 1 }", "1"),
    NO_IMPORT_IN("/** @type {import('fs')} */\nfunction main() { return 1 }", "1"),
    NO_IMPORT_IN("function main() { return /import\\('fs'\\)/.test(\"import('fs')\") }", "true"),
    NO_IMPORT_IN("const importPath = (x) => x; function main() { return importPath(3) }", "3"),
    NO_IMPORT_IN("function main() { return { import: 1 } }", "{\"import\":1}"),
    NO_IMPORT_IN("function main() { const o = { import() { return 4 } }; return o.import('x') }", "4"),
    {"import statement", "import fs from 'fs'\nfunction main() { return 1 }", NULL, .type = "SyntaxError", .part = ""},

    {"setPrototypeOf of built-ins",
     "function main() { return [Object.setPrototypeOf(Array.prototype, null), Reflect.setPrototypeOf(Object, {}), "
     "Object.setPrototypeOf(Function.prototype, null), Object.setPrototypeOf(JSON, null), "
     "Reflect.setPrototypeOf(Math.max, null), Object.setPrototypeOf(Map.prototype, null)] }",
     NULL, "[false,false,false,false,false,false]"},
    {"setPrototypeOf of own objects",
     "function main() { const a = Object.setPrototypeOf({}, { x: 1 }); const b = {}; return [a.x, "
     "Reflect.setPrototypeOf(b, { x: 2 }), b.x] }",
     NULL, "[1,true,2]"},
    {"setPrototypeOf when strict",
     "function main() { return [Object.setPrototypeOf({}, {}), Reflect.setPrototypeOf({}, {})] }", NULL,
     "[false,false]", .strict = true},
    {"stack hooks", "function main() { return [typeof Error.prepareStackTrace, typeof Error.captureStackTrace] }", NULL,
     "[\"undefined\",\"undefined\"]"},
    {"stack tells no path",
     "function main() { try { require('uuid').v5('x', 'y') } catch (e) { return ['node_modules', '/src/pool/', "
     "'process-pool', '/'].every((t) => !e.stack.includes(t)) && e.stack.includes('code.js:1') } }",
     NULL, "true"},
    {"__proto__",
     "function main() { const o = {}; o.__proto__.polluted = true; return [({}).polluted, typeof o.__proto__] }", NULL,
     "[true,\"object\"]"},
    {"Symbol.unscopables",
     "function main() { Object.prototype[Symbol.unscopables] = { process: true }; return typeof process }", NULL,
     "\"object\""},
    {"proxy handler",
     "function main() { const p = new Proxy(function () {}, { get: (t, k) => k === 'constructor' ? Function : t[k], "
     "apply: () => 1 }); return p.constructor('return 1')() }",
     NULL, .message = NO_FUNCTION},
    {"SystemHelper is read-only", "function main() { SystemHelper.httpRequest = () => 1 }", NULL, .type = "TypeError",
     .part = ""},
    {"SystemHelper is not replaced", "function main() { SystemHelper = {} }", NULL, .type = "TypeError", .part = ""},
    {"exports are read-only", "function main() { require('lodash').map = null }", NULL,
     .message = "Sandbox module exports are read-only"},
    {"exports cannot be defined on", "function main() { Object.defineProperty(require('moment'), 'x', { value: 1 }) }",
     NULL, .message = "Sandbox module exports are read-only"},
    {"exports cannot be deleted", "function main() { delete require('qs').parse }", NULL,
     .message = "Sandbox module exports are read-only"},
    {"what exports return is not", "function main() { const m = require('moment')(0); m.extra = 1; return m.extra }",
     NULL, "1"},
    {"native functions are out of reach",
     "function main() { const seen = []; for (const n of Object.getOwnPropertyNames(SystemHelper)) seen.push(n); "
     "return [seen, Object.getOwnPropertyNames(console).length] }",
     NULL, "[[\"httpRequest\"],8]"},
    {"closed early", "function main() { return typeof this } }); (function () { return 1 })(); (() => { const a = 1;",
     NULL, .part = ""},
};
CASES(cases_guard);
