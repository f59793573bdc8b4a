#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The structure of the tree, enforced (standard library only, so that `make lint` and CI need nothing for it):
  - dependencies point one way: services -> common -> proto; no service includes another's headers, common includes none;
  - the libraries of common/ have no include cycle;
  - no source file above 800 lines without a reason in long-files.txt;
  - every source file starts with its SPDX line;
  - every service has a README.md and a main file;
  - links between our own documents lead somewhere;
  - no path of a developer's machine and no registry host stands in any file.
Prints one line per fault and ends with 1 when there are any."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
LINES_MAX = 800
SOURCE = (".c", ".h", ".def", ".py", ".sh", ".ts", ".mjs", ".js", ".cmake", ".in")
SPDX_NAMES = ("CMakeLists.txt", "Makefile")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
# Written in parts, so that this file does not contain what it looks for.
FORBIDDEN = [re.compile(pattern) for pattern in (
    r"/ro" + r"ot/", r"/wo" + r"rk/", r"/ho" + r"me/(?!sandbox)[a-z]", r"deb\.deb" + r"ian\.org", r"registry\.npm" + r"js\.org", r"files\.pythonho" + r"sted\.org",
    r"\bpy" + r"pi\.org", r"proxy\.gol" + r"ang\.org", r"static\.crat" + r"es\.io", r"index\.crat" + r"es\.io", r"/tm" + r"p/[bw]/")]


def files():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in sorted(listed.decode().split("\0")):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink():
            yield name, path


def text_of(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None  # binary: seed corpora, pictures


def area(name):
    """("services", "ctl") for services/ctl/main.c; ("common", "bus"); ("proto", "")."""
    parts = name.split("/")
    return (parts[0], parts[1] if len(parts) > 2 else "")


def include_faults(name, text, edges):
    kind, which = area(name)
    for included in INCLUDE.findall(text):
        to_kind, to_which = area(included)
        if to_kind not in ("services", "common", "proto", "tests"):
            continue
        if kind == "common" and to_kind in ("services", "tests"):
            yield f"{name}: common must not include {included}"
        if kind == "proto" and to_kind != "proto":
            yield f"{name}: proto must not include {included}"
        if kind == "services" and to_kind == "tests":
            yield f"{name}: a service must not include {included}"
        if kind == "services" and to_kind == "services" and which != to_which:
            yield f"{name}: a service must not include another's header {included}"
        if kind == "common" and to_kind == "common" and which != to_which:
            edges.setdefault(which, {}).setdefault(to_which, name)


def cycle_faults(edges):
    done, path = set(), []

    def visit(node):
        if node in path:
            around = path[path.index(node):] + [node]
            where = ", ".join(edges[a][b] for a, b in zip(around, around[1:]))
            yield f"common: include cycle {' -> '.join(around)} ({where})"
            return
        if node in done:
            return
        path.append(node)
        for target in sorted(edges.get(node, {})):
            yield from visit(target)
        path.pop()
        done.add(node)

    for node in sorted(edges):
        yield from visit(node)


def is_script(name, text):
    return text.startswith("#!") and "." not in pathlib.PurePath(name).name


def faults():
    reasons, edges = {}, {}
    for line in (HERE / "long-files.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            path, _, reason = line.partition(": ")
            reasons[path] = reason.strip()
    for name, path in files():
        text = text_of(path)
        if text is None:
            continue
        source = name.endswith(SOURCE) or pathlib.PurePath(name).name in SPDX_NAMES or is_script(name, text)
        if source and "SPDX-License-Identifier: Apache-2.0" not in "\n".join(text.splitlines()[:3]):
            yield f"{name}: no SPDX line at its head"
        if source and not name.endswith(".def"):
            count = text.count("\n")
            if count > LINES_MAX and not reasons.get(name):
                yield f"{name}: {count} lines (at most {LINES_MAX}, or a reason in tests/structure/long-files.txt)"
            if count <= LINES_MAX and name in reasons:
                yield f"{name}: listed in long-files.txt but only {count} lines long"
        if name.endswith((".c", ".h", ".def")):
            yield from include_faults(name, text, edges)
        if name.endswith(".md"):
            for target in LINK.findall(text):
                if "://" not in target and not target.startswith("mailto:") and not (path.parent / target).exists():
                    yield f"{name}: the link {target} leads nowhere"
        for pattern in FORBIDDEN:
            found = pattern.search(text)
            if found:
                yield f"{name}: contains {found.group(0)}"
    yield from cycle_faults(edges)
    for folder in sorted((ROOT / "services").iterdir()):
        if folder.is_dir() and any(folder.iterdir()):
            for wanted in ("README.md", "CMakeLists.txt"):
                if not (folder / wanted).exists():
                    yield f"services/{folder.name}: has no {wanted}"
    for name in reasons:
        if not (ROOT / name).exists():
            yield f"tests/structure/long-files.txt: {name} does not exist"


def main():
    found = list(faults())
    for fault in found:
        print(fault)
    print(f"structure: {len(found)} fault{'' if len(found) == 1 else 's'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
