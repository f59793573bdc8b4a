// SPDX-License-Identifier: Apache-2.0
// Makes the one script that the JavaScript sandbox embeds, and the notices of the packages that are in it:
//   node build.mjs <bundle.js> <THIRD-PARTY-NOTICES.txt>
// It runs in a folder that holds package.json, node_modules and src (cmake lays it out in the build tree).
import { build } from "esbuild";
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [, , bundlePath, noticesPath] = process.argv;

// moment loads each locale from its file when it is asked for it, as in node: here from functions that were not called yet.
const momentLocales = {
    name: "moment-locales",
    setup(builder) {
        builder.onResolve({ filter: /^moment-locales$/ }, (args) => ({ path: args.path, namespace: "generated" }));
        builder.onLoad({ filter: /.*/, namespace: "generated" }, () => {
            const names = readdirSync("node_modules/moment/locale").map((file) => file.replace(/\.js$/, ""));
            const entries = names.map((name) => `${JSON.stringify(name)}: () => require("moment/locale/${name}.js")`);

            return { contents: `export const locales = { __proto__: null, ${entries.join(", ")} };`, resolveDir: process.cwd() };
        });
        builder.onLoad({ filter: /node_modules.moment.moment\.js$/ }, (args) => {
            const text = readFileSync(args.path, "utf8");
            const patched = text.replace("aliasedRequire = require;", "aliasedRequire = sandkeepMomentLocale;");

            if (patched === text) throw new Error("moment loads its locales in another way");
            return { contents: patched, loader: "js" };
        });
    },
};

// The table of characters in host names: 9185 arrays, a megabyte of every template and as much to collect. Here as numbers, with the
// same answers; what does not fit fails the build.
function hostCharacters() {
    const table = JSON.parse(readFileSync("node_modules/tr46/lib/mappingTable.json", "utf8"));
    let steps = "", status = "", lengths = "", texts = "", next = 0;

    for (const [range, of, text = ""] of table) {
        const [first, last] = Array.isArray(range) ? range : [range, range];

        if (first !== next || text.length > 35 || of > 9) throw new Error("tr46 has a table of another kind");
        next = last + 1;
        steps += (next - first).toString(36) + " ";
        status += of;
        lengths += text.length.toString(36);
        texts += text;
    }
    if (next !== 0x110000 || texts.length > 0xffff) throw new Error("tr46 has a table of another kind");
    return `
        const status = ${JSON.stringify(status)}, texts = ${JSON.stringify(texts)}, count = status.length;
        const first = new Uint32Array(count), at = new Uint16Array(count + 1), steps = ${JSON.stringify(steps)}.split(" "), lengths = ${JSON.stringify(lengths)};
        for (let i = 0, code = 0, to = 0; i < count; i++) {
            first[i] = code;
            code += parseInt(steps[i], 36);
            to += parseInt(lengths[i], 36);
            at[i + 1] = to;
        }
        module.exports = (code) => {
            let low = 0, high = count - 1;

            while (low < high) {
                const middle = (low + high + 1) >>> 1;
                if (first[middle] <= code) low = middle;
                else high = middle - 1;
            }
            return [+status[low], texts.slice(at[low], at[low + 1])];
        };`;
}

const hostNames = {
    name: "host-names",
    setup(builder) {
        builder.onResolve({ filter: /^host-characters$/ }, (args) => ({ path: args.path, namespace: "host-characters" }));
        builder.onLoad({ filter: /.*/, namespace: "host-characters" }, () => ({ contents: hostCharacters() }));
        builder.onLoad({ filter: /node_modules.tr46.index\.js$/ }, (args) => {
            const text = readFileSync(args.path, "utf8");
            const patched = text.replace('const mappingTable = require("./lib/mappingTable.json");', 'const findStatus = require("host-characters");')
                .replace(/^function findStatus\(val\) \{\n.*?\n\}\n/ms, "");

            if (patched.includes("mappingTable") || patched.includes("function findStatus")) throw new Error("tr46 looks up characters in another way");
            return { contents: patched, loader: "js" };
        });
    },
};

// The script is one function expression: C calls it with the native functions, and gets the entry points back.
const result = await build({
    entryPoints: ["src/main.js"],
    bundle: true,
    platform: "browser",
    format: "iife",
    globalName: "entry",
    target: "esnext",
    charset: "ascii",
    minifyWhitespace: true,
    legalComments: "none", // their texts are in the notices
    loader: { ".task.js": "text" },
    plugins: [momentLocales, hostNames],
    inject: ["src/inject.js"],
    define: { "Object.setPrototypeOf": "sandkeepSetPrototypeOf", global: "globalThis", "process.env.NODE_ENV": '"production"' },
    banner: { js: "(function(host){\"use strict\";" },
    footer: { js: "return entry;})" },
    metafile: true,
    write: false,
    logLevel: "warning",
});
// What esbuild leaves beyond ASCII stands in regular expressions, where an escape means the same; the engine takes ASCII
// from where it is embedded, without a copy.
writeFileSync(bundlePath, result.outputFiles[0].text.replace(/[^\x00-\x7f]/g, (unit) => "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0")));

const used = new Set();
for (const [name, input] of Object.entries(Object.values(result.metafile.outputs)[0].inputs)) {
    const found = /^(?:.*\/)?node_modules\/(?:@[^/]+\/)?[^/]+(?=\/)/.exec(name); // packages within packages are their own
    if (found && input.bytesInOutput > 0) used.add(found[0]);
}
let notices = "The JavaScript code sandbox contains these packages.\n";
for (const folder of [...used].sort()) {
    const name = folder.slice(folder.lastIndexOf("node_modules/") + "node_modules/".length);
    const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const texts = readdirSync(folder).filter((file) => /^(licen[cs]e|copying|notice)/i.test(file) && existsSync(join(folder, file)));
    if (texts.length === 0 && !about.license) throw new Error(`no licence of ${name} found`);
    notices += `\n${"=".repeat(100)}\n${name} ${about.version} (${typeof about.license === "string" ? about.license : about.licenses?.[0]?.type})\n\n`;
    for (const file of texts.sort()) notices += readFileSync(join(folder, file), "utf8").trimEnd() + "\n";
}
writeFileSync(noticesPath, notices);
