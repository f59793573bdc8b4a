# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts of this folder: paths, messages, versions. Sourced, never run. All paths may contain spaces.
# shellcheck shell=bash
set -euo pipefail

SK_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
SK_TOOLS=${SANDKEEP_TOOLS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/sandkeep/tools}
SK_VENV=$SK_ROOT/tests/.venv
SK_SECANTUS_VERSION=0.7.0b3
SK_SECANTUS_FAST_VERSION=0.5.3-beta.193
SK_SECANTUS_DIR=$SK_TOOLS/secantusdb-$SK_SECANTUS_VERSION
SK_SECANTUS_FAST_DIR=$SK_TOOLS/secantus-mdb-$SK_SECANTUS_FAST_VERSION
SK_NODE_VERSION=22.23.5
SK_NODE_DIR=$SK_TOOLS/node-$SK_NODE_VERSION
export SANDKEEP_TOOLS_DIR=$SK_TOOLS
export SK_ROOT SK_TOOLS SK_VENV SK_SECANTUS_VERSION SK_SECANTUS_FAST_VERSION SK_SECANTUS_DIR SK_SECANTUS_FAST_DIR SK_NODE_VERSION SK_NODE_DIR

# What runs; everything else that a build makes is for tests.
# shellcheck disable=SC2034
SK_PROGRAMS=(sk-lifecycle sk-localbox sk-init sk-code sk-code-js sk-code-python skctl)

say() { printf '== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command with the rights to install packages.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif have sudo; then
        sudo -- "$@"
    else
        die "this step needs root or sudo: $*"
    fi
}

# The official SDKs want Node 20.18 or newer; Debian 12 has 18. Then the one in the tools cache is used.
node_is_new() { node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 18) ? 0 : 1)' 2>/dev/null; }
use_cached_node() {
    if [ -x "$SK_NODE_DIR/bin/node" ] && ! node_is_new; then
        export PATH=$SK_NODE_DIR/bin:$PATH
    fi
}
use_cached_node

# The Python that makes virtual environments: the distribution's own when it can, else the first that is new enough.
pick_python() {
    local candidate
    for candidate in /usr/bin/python3 python3; do
        if have "$candidate" && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# Our own C files (tracked or new, never build output).
own_c_files() {
    git -C "$SK_ROOT" ls-files -z --cached --others --exclude-standard -- '*.c' '*.h' | while IFS= read -r -d '' file; do
        [ -f "$SK_ROOT/$file" ] && printf '%s\0' "$file"
    done
}
