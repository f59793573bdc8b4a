/* SPDX-License-Identifier: Apache-2.0
 *
 * The modules, with the values that upstream's tests name, and the classes of the platform. */
#include "tests/unit/code/js/cases.h"

#define RUN(name, expression, result)                                                                                  \
    {                                                                                                                  \
        name, "function main() { return " expression " }", NULL, result                                                \
    }

const struct js_case cases_modules[] = {
    RUN("crypto-js MD5", "require('crypto-js').MD5('hello').toString()", "\"5d41402abc4b2a76b9719d911017c592\""),
    RUN("crypto-js SHA256", "require('crypto-js').SHA256('fastgpt').toString()",
        "\"046ca27ed8a95d7aaec3fd577ba8d9eabd7f7915de4e7c0e120d06d758bff75a\""),
    RUN("crypto-js AES",
        "(() => { const C = require('crypto-js'); return C.AES.decrypt(C.AES.encrypt('text', 'key').toString(), "
        "'key').toString(C.enc.Utf8) })()",
        "\"text\""),
    RUN("crypto-js random", "require('crypto-js').lib.WordArray.random(16).toString().length", "32"),
    RUN("uuid v5", "require('uuid').v5('fastgpt', require('uuid').v5.URL)", "\"8d10dc2b-3d86-5ae4-b41b-a42c6000e3eb\""),
    RUN("uuid v4",
        "[/^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(require('uuid').v4()), "
        "require('uuid').v4() !== require('uuid').v4()]",
        "[true,true]"),
    RUN("uuid v1, validate",
        "[require('uuid').validate(require('uuid').v1()), require('uuid').version(require('uuid').v1())]", "[true,1]"),
    RUN("qs", "[require('qs').stringify({ a: { b: 1, c: [2, 3] } }), require('qs').parse('a[b]=1&c=2')]",
        "[\"a%5Bb%5D=1&a%5Bc%5D%5B0%5D=2&a%5Bc%5D%5B1%5D=3\",{\"a\":{\"b\":\"1\"},\"c\":\"2\"}]"),
    RUN("lodash",
        "(() => { const _ = require('lodash'); return [_.chunk([1, 2, 3], 2), _.get({ a: { b: 1 } }, 'a.b'), "
        "_.chain([3, 1, 2]).sortBy().map((x) => x * 2).value(), _.merge({ a: 1 }, { b: 2 }), _.camelCase('foo bar'), "
        "_.cloneDeep({ d: [1] }), _(1).value(), _.VERSION > '4'] })()",
        "[[[1,2],[3]],1,[2,4,6],{\"a\":1,\"b\":2},\"fooBar\",{\"d\":[1]},1,true]"),
    RUN("lodash timers", "new Promise((r) => require('lodash').delay(r, 1, 'd'))", "\"d\""),
    RUN("lodash random",
        "(() => { const _ = require('lodash'); const n = _.random(0, 1, true); return n >= 0 && n < 1 && _.shuffle([1, "
        "2, 3]).length === 3 && _.sample([7]) })()",
        "7"),
    RUN("dayjs",
        "[require('dayjs')('2024-01-02').format('YYYY/MM/DD'), require('dayjs')('2024-01-31').add(1, "
        "'month').format('MM-DD')]",
        "[\"2024/01/02\",\"02-29\"]"),
    RUN("moment",
        "(() => { const m = require('moment'); return [m.utc(0).format('YYYY-MM-DD HH:mm'), m('2024-02-30').isValid(), "
        "m.utc(0).locale('zh-cn').format('dddd'), m.locales().sort().join(), m.locale(), m.utc(0) instanceof m, "
        "m.duration(90, 'minutes').humanize()] })()",
        "[\"1970-01-01 00:00\",false,\"\\u661f\\u671f\\u56db\",\"en,zh-cn\",\"en\",true,\"2 hours\"]"),
    RUN("moment locales",
        "[require('moment').locale('de'), require('moment').utc(0).format('LLLL'), require('moment').locale('none'), "
        "require('moment').locale('../../x'), require('moment').locale('__proto__')]",
        "[\"de\",\"Donnerstag, 1. Januar 1970 00:00\",\"de\",\"de\",\"de\"]"),
    RUN("url.parse",
        "(() => { const u = require('url').parse('http://u:p@h:8/p/a?x=1&x=2#f', true); return [u.hostname, u.port, "
        "u.pathname, u.query.x, u.hash, require('url').format({ protocol: 'http', host: 'a.b', pathname: '/c' }), "
        "require('url').resolve('http://a/b/', '../c')] })()",
        "[\"h\",\"8\",\"/p/a\",[\"1\",\"2\"],\"#f\",\"http://a.b/c\",\"http://a/c\"]"),
    RUN("url.URL",
        "[new (require('url').URL)('/b?q=1', 'http://a').href, require('url').URL === URL, "
        "require('url').URLSearchParams === URLSearchParams]",
        "[\"http://a/b?q=1\",true,true]"),
    RUN("querystring",
        "(() => { const q = require('querystring'); return [q.stringify({ a: [1, 2], b: 'x y' }), "
        "q.parse('a=1&a=2&b=%20'), q.escape('a b'), q.unescape('a%20b')] })()",
        "[\"a=1&a=2&b=x%20y\",{\"a\":[\"1\",\"2\"],\"b\":\" \"},\"a%20b\",\"a b\"]"),
    RUN("buffer", "require('buffer').Buffer === Buffer", "true"),

    RUN("Buffer",
        "[Buffer.from('h\\u00e9llo').toString('hex'), Buffer.from('aGk=', 'base64').toString(), "
        "Buffer.concat([Buffer.from([1]), Buffer.alloc(2)]).length, Buffer.byteLength('\\u4f60'), "
        "Buffer.isBuffer(Buffer.alloc(1)), Buffer.from('ff', 'hex')[0], Buffer.from([1, 2, 3]).readUInt16BE(1), "
        "Buffer.compare(Buffer.from('a'), Buffer.from('b'))]",
        "[\"68c3a96c6c6f\",\"hi\",3,3,true,255,515,-1]"),
    RUN("Buffer base64url",
        "[Buffer.from([251, 255, 254]).toString('base64url'), [...Buffer.from('-__-', 'base64url')], "
        "Buffer.isEncoding('base64url'), Buffer.byteLength('-__-', 'base64url'), Buffer.from('hi').toString('base64')]",
        "[\"-__-\",[251,255,254],true,3,\"aGk=\"]"),
    RUN("URL",
        "(() => { const u = new URL('HTTPS://user:p%40@Ex\\u00e4mple.com:443/a/../b?x=1#h'); "
        "u.searchParams.append('y', 'a b'); return [u.href, u.host, u.origin, URL.canParse('x:'), u.password] })()",
        "[\"https://user:p%40@xn--exmple-cua.com/b?x=1&y=a+b#h\",\"xn--exmple-cua.com\",\"https://"
        "xn--exmple-cua.com\",true,\"p%40\"]"),
    RUN("URL with characters of each kind", /* mapped to several, ignored, kept, beyond 16 bits, the last ones, refused
                                             */
        "['\\u2460\\u337b.\\u210c', 'a\\u00adb', 'fa\\u00df.de', '\\ud83c\\udd50z', '\\ufdfa', '\\ud840\\udc00', "
        "'\\udbff\\udffd', '\\u0378'].map((host) => { try { return new URL('http://' + host).host } catch (e) { return "
        "e.name } })",
        "[\"xn--1-nj3bt0i.h\",\"ab\",\"xn--fa-hia.de\",\"xn--z-xw1s\",\"TypeError\",\"xn--j50i\",\"TypeError\","
        "\"TypeError\"]"),
    {"URL refuses", "function main() { new URL('no') }", NULL, .type = "TypeError", .part = "Invalid URL"},
    RUN("URLSearchParams",
        "[...new URLSearchParams('a=1&b=2&a=3')].concat([new URLSearchParams({ q: '\\u4f60 ' }).toString()])",
        "[[\"a\",\"1\"],[\"b\",\"2\"],[\"a\",\"3\"],\"q=%E4%BD%A0+\"]"),
    RUN("TextEncoder",
        "[[...new TextEncoder().encode('\\u4f60\\ud83d\\ude00\\ud800')], new TextEncoder().encodeInto('a\\u4f60', new "
        "Uint8Array(3)), new TextEncoder().encoding]",
        "[[228,189,160,240,159,152,128,239,191,189],{\"read\":1,\"written\":1},\"utf-8\"]"),
    RUN("TextDecoder",
        "[new TextDecoder().decode(new Uint8Array([0xef, 0xbb, 0xbf, 0xe4, 0xbd, 0xa0, 0xff, 0xe4, 0x41])), new "
        "TextDecoder('utf-16le').decode(new Uint8Array([0x60, 0x4f])), new TextDecoder('latin1').decode(new "
        "Uint8Array([0x80, 0xe9])), new TextDecoder().decode(new Uint8Array([0, 65, 66, 0]).subarray(1, 3)), new "
        "TextDecoder().decode()]",
        "[\"\\u4f60\\ufffd\\ufffdA\",\"\\u4f60\",\"\\u20ac\\u00e9\",\"AB\",\"\"]"),
    RUN("TextDecoder maximal subparts",
        "new TextDecoder().decode(new Uint8Array([0xf0, 0x9f, 0x98, 0x41, 0xe0, 0x80, 0xed, 0xa0, 0x80, 0xc0, 0xf5, "
        "0xf0, 0x9f, 0x98, 0x80]))",
        "\"\\ufffdA\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ud83d\\ude00\""),
    RUN("TextDecoder streams",
        "(() => { const d = new TextDecoder(), o = { stream: true }; return [d.decode(new Uint8Array([0xe4]), o), "
        "d.decode(new Uint8Array([0xbd]), o), d.decode(new Uint8Array([0xa0, 0x41]), o), d.decode()] })()",
        "[\"\",\"\",\"\\u4f60A\",\"\"]"),
    {"TextDecoder fatal", "function main() { new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array([255])) }",
     NULL, .type = "TypeError", .part = "not valid"},
    {"TextDecoder unknown", "function main() { new TextDecoder('x-none') }", NULL, .type = "RangeError",
     .part = "x-none"},
    RUN("atob and btoa", "[btoa('hello'), atob('aGVsbG8='), btoa(''), atob(' aGk '), btoa('\\xff\\xfe'), atob('aGk')]",
        "[\"aGVsbG8=\",\"hello\",\"\",\"hi\",\"//4=\",\"hi\"]"),
    {"btoa beyond bytes", "function main() { btoa('\\u4f60') }", NULL, .type = "InvalidCharacterError", .part = ""},
    {"atob of other text", "function main() { atob('a*b') }", NULL, .type = "InvalidCharacterError", .part = ""},
    RUN("structuredClone",
        "(() => { const o = { d: new Date(0), m: new Map([[1, { x: new Set([2]) }]]), r: /a/gi, b: new "
        "Uint8Array([1]), e: new RangeError('r'), n: [1, , 3], u: undefined }; o.self = o; const c = "
        "structuredClone(o);"
        " return [c !== o, c.self === c, c.d, [...c.m.get(1).x], String(c.r), c.b, c.e instanceof RangeError && "
        "c.e.message, 1 in c.n, 'u' in c, Object.keys(structuredClone(JSON.parse('{\"__proto__\":1}')))] })()",
        "[true,true,\"1970-01-01T00:00:00.000Z\",[2],\"/a/gi\",[1],\"r\",false,true,[\"__proto__\"]]"),
    {"structuredClone of a function", "function main() { structuredClone({ f() {} }) }", NULL, .type = "DataCloneError",
     .part = "could not be cloned"},
    RUN("crypto",
        "(() => { const a = crypto.getRandomValues(new Uint8Array(64)), b = crypto.getRandomValues(new "
        "Uint32Array(4)); return [a.some((x) => x), b.length, new Set(a).size > 8, "
        "/^[0-9a-f-]{36}$/.test(crypto.randomUUID())] })()",
        "[true,4,true,true]"),
    {"crypto quota", "function main() { crypto.getRandomValues(new Uint8Array(65537)) }", NULL,
     .type = "QuotaExceededError", .part = "65536"},
    {"crypto of floats", "function main() { crypto.getRandomValues(new Float32Array(1)) }", NULL,
     .type = "TypeMismatchError", .part = ""},
    RUN("Math.random",
        "(() => { const n = Array.from({ length: 2000 }, Math.random); const mean = n.reduce((a, b) => a + b) / "
        "n.length; return [n.every((x) => x >= 0 && x < 1), mean > 0.45 && mean < 0.55, new Set(n).size] })()",
        "[true,true,2000]"),
    RUN("Intl of the rarer kind, without a file",
        "[new Date(0).toLocaleDateString('ja-JP-u-ca-japanese', { timeZone: 'Asia/Tokyo' }).length > 0, "
        "(1.5).toLocaleString('ar-EG').length > 0, new Intl.Collator('sv').compare('z', '\\u00e4') < 0, [...new "
        "Intl.Segmenter('th', { granularity: 'word' }).segment('\\u0e2a\\u0e27\\u0e31\\u0e2a\\u0e14\\u0e35')].length > "
        "0, new Intl.PluralRules('ru').select(2), new Intl.ListFormat('de').format(['a', 'b']), new "
        "Intl.DisplayNames('fr', { type: 'region' }).of('DE'), new Intl.RelativeTimeFormat('zh').format(-1, 'day'), "
        "'e\\u0301'.normalize('NFC').length, Intl.supportedValuesOf('timeZone').length > 300, new Date(2024, 0, "
        "1).getTimezoneOffset(), Intl.DateTimeFormat().resolvedOptions().timeZone]",
        "[true,true,true,true,\"few\",\"a und b\",\"Allemagne\",\"1\\u5929\\u524d\",1,true,0,\"UTC\"]"),
    {"queueMicrotask without a function", "function main() { queueMicrotask(1) }", NULL,
     .message = "queueMicrotask expects a function"},
};
CASES(cases_modules);
