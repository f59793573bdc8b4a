# SPDX-License-Identifier: Apache-2.0
"""Printing: one line a figure for people, with its bar and its peer of the same run, and one JSON object a line for
machines (JSON lines on stdout when --json is given, else only the file that SANDKEEP_BENCH_JSON names)."""
import json
import os
import statistics
import sys


def median(values):
    return statistics.median(values)


class Report:
    """Collects figures of one benchmark. `end` returns the exit status: 1 when a bar was missed."""

    def __init__(self, name):
        self.name, self.missed, self.path = name, [], os.environ.get("SANDKEEP_BENCH_JSON")

    def note(self, text):
        print(f"   {text}", flush=True)

    def figure(self, what, value, unit, bar=None, most=True, peer=None, on=None, counts=True):
        """`bar`: at most (most) or at least. `counts` False: reported, but no miss of it fails the run."""
        good = bar is None or (value <= bar if most else value >= bar)
        if not good and counts:
            self.missed.append(what)
        limit = "" if bar is None else f"   bar {'<=' if most else '>='} {bar:g} {unit}: {'ok' if good else 'MISSED' if counts else 'above (reported only)'}"
        against = f"   peer {peer}" if peer else ""
        print(f"   {what + (f' [{on}]' if on else ''):66} {value:10.3f} {unit}{limit}{against}", flush=True)
        record = {"bench": self.name, "what": what, "value": round(value, 4), "unit": unit, "bar": bar, "atMost": most, "met": good,
                  "counts": counts, "peer": peer, "on": on}
        line = json.dumps({key: item for key, item in record.items() if item is not None})
        if self.path:
            with open(self.path, "a", encoding="utf-8") as out:
                out.write(line + "\n")
        if "--json" in sys.argv:
            print(line, flush=True)

    def end(self):
        if self.missed:
            print(f"   missed: {', '.join(self.missed)}", flush=True)
        return 1 if self.missed else 0


def load_average():
    return os.getloadavg()[0]
