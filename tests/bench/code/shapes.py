# SPDX-License-Identifier: Apache-2.0
"""The tasks of the code sandbox's benchmark; both sides run the same text."""

TRIVIAL = {
    "js": "function main() { return { result: 1 + 1 } }",
    "python": "def main():\n    return {'result': 1 + 1}\n",
    "full": "import numpy\ndef main():\n    return {'result': 1 + 1}\n",
    "pandas": """import pandas as pd
def main():
    frame = pd.DataFrame({'key': [i % 10 for i in range(10000)], 'value': list(range(10000))})
    sums = frame.groupby('key')['value'].sum()
    return {'result': [int(n) for n in sums]}
""",
}
EXPECT = {"js": {"result": 2}, "python": {"result": 2}, "full": {"result": 2},
          "pandas": {"result": [4995000 + 1000 * i for i in range(10)]}}

# Loops that run hot, each in a fresh process that has never seen the code: the time is taken inside, so that it holds all
# compiling, and nothing of the process' start. Two are those of the original's own benchmark.
LOOPS = {
    "square roots, 50 M": "let sum = 0; for (let i = 0; i < 50000000; i++) sum += Math.sqrt(i); return sum;",
    "fill and map, 5 M": "return new Array(5000000).fill(0).map((_, i) => i * i).length;",
    "objects, 3 M": """let point = { x: 0, y: 0 }; const list = [];
        for (let i = 0; i < 3000000; i++) { const p = { x: point.x + 1, y: point.y + i % 3, tag: i & 7 }; if (p.tag === 3) list[i % 1000] = p; point = p; }
        return point.x + point.y + list.filter(Boolean).length;""",
    "text and regular expressions": """let text = ''; for (let i = 0; i < 400000; i++) text += 'w' + (i % 977) + (i % 13 ? ' ' : ', ');
        const words = text.split(/[ ,]+/); const found = text.match(/w\\d*7\\b/g).length;
        return words.map((w) => w.toUpperCase()).join('-').length + found + text.replace(/w(\\d)/g, '$1w').length;""",
    "maps, sort and JSON": """const counts = new Map(); const rows = [];
        for (let i = 0; i < 600000; i++) { const k = 'k' + (i * 7919) % 5003; counts.set(k, (counts.get(k) || 0) + i % 11); if (i % 4 === 0) rows.push({ k, n: (i * 48271) % 65537 }); }
        rows.sort((a, b) => a.n - b.n || (a.k < b.k ? -1 : 1));
        const again = JSON.parse(JSON.stringify(rows)); return again[again.length >> 1].n + counts.size;""",
    "recursion and matrices": """const fib = (n) => (n < 2 ? n : fib(n - 1) + fib(n - 2)); const n = 260;
        const a = new Float64Array(n * n), b = new Float64Array(n * n), c = new Float64Array(n * n);
        for (let i = 0; i < n * n; i++) { a[i] = i % 7; b[i] = i % 5; }
        for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) { let sum = 0; for (let k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j]; c[i * n + j] = sum; }
        return fib(32) + c[n * n - 1];""",
}


def timed(loop):
    """The task of a loop: {ms, value}."""
    return f"""function work() {{ {loop} }}
function main() {{ const begun = Date.now(); const value = work(); return {{ ms: Date.now() - begun, value }} }}"""
