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
    plugins: [momentLocales],
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
    const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(name);
    if (found && input.bytesInOutput > 0) used.add(found[1]);
}
let notices = "The JavaScript code sandbox contains these packages.\n";
for (const name of [...used].sort()) {
    const folder = join("node_modules", name);
    const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const texts = readdirSync(folder).filter((file) => /^(licen[cs]e|copying|notice)/i.test(file) && existsSync(join(folder, file)));
    if (texts.length === 0 && !about.license) throw new Error(`no licence of ${name} found`);
    notices += `\n${"=".repeat(100)}\n${name} ${about.version} (${typeof about.license === "string" ? about.license : about.licenses?.[0]?.type})\n\n`;
    for (const file of texts.sort()) notices += readFileSync(join(folder, file), "utf8").trimEnd() + "\n";
}
writeFileSync(noticesPath, notices);
