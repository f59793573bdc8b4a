#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the compatibility table against a server that runs already (FastGPT's own code sandbox, or sk-code anywhere):

    tests/code/compat/run.py URL [--token TOKEN] [--ours] [--fast] [--network] [-k WORD …]

Without --ours it leaves out what the original does otherwise or not at all (the rows marked `ours`) and what needs a
configuration of its own (`small`). --fast leaves out the rows that take SANDBOX_MAX_TIMEOUT elsewhere; --network adds those
that need the Internet. One line for each row that does not hold, then the count; ends with 1 when there was one.
Standard library only."""
import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from compat import rows_http, rows_js, rows_network, rows_python  # noqa: E402
from compat.table import Target, wanted  # noqa: E402

ROWS = rows_http.ROWS + rows_js.ROWS + rows_python.ROWS + rows_network.ROWS


def main():
    parser = argparse.ArgumentParser(description="Holds the compatibility table against a code sandbox.")
    parser.add_argument("url")
    parser.add_argument("--token", default=os.environ.get("SANDBOX_TOKEN", ""), help="default: SANDBOX_TOKEN")
    parser.add_argument("--ours", action="store_true", help="it is sk-code with its default configuration: look at everything")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("-k", dest="words", metavar="WORD", nargs="+", default=[], help="only rows with one of these words in their name")
    given = parser.parse_args()
    target = Target(given.url, given.token, given.ours)
    failed = held = 0
    for row in ROWS:
        if not wanted(row, given.ours, not given.fast, given.network) or (given.ours and row.server != "default"):
            continue
        if given.words and not any(word in f"{row} {row.language}" for word in given.words):
            continue
        if not row.authorized and row.status in (400, 401) and not given.token:
            continue  # a server without a token lets everybody in
        try:
            fault = target.judge(row)
        except OSError as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            failed += 1
            print(f"{row.language or 'http'} {row}: {fault}", flush=True)
        else:
            held += 1
    print(f"{held} rows hold, {failed} do not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
