# SPDX-License-Identifier: Apache-2.0
"""tally.py LOGDIR SUITE… -- FAILED-SUITE…: adds up what the runners of each suite counted, prints a table and, last, one
line "N passed, N failed[, N skipped]". A suite that failed without a failed test in its counts counts as one failure; a
suite that passed without any count (structure) as one pass. Ends with 1 when anything failed."""
import pathlib
import re
import sys

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def counts(text):
    """(passed, failed, skipped) of all closing lines that the known runners print."""
    passed = failed = skipped = 0
    for line in ANSI.sub("", text).splitlines():
        ctest = re.fullmatch(r"\d+% tests passed, (\d+) tests failed out of (\d+)", line.strip())
        pytest = re.fullmatch(r"=*\s*((?:\d+ (?:passed|failed|skipped|error|errors|xfailed|xpassed|warnings?|deselected)(?:, )?)+) in [\d.]+s.*", line.strip())
        node = re.fullmatch(r"(?:ℹ|#) (pass|fail|skipped) (\d+)", line.strip())
        again = re.fullmatch(r"second try: (\d+) failed before", line.strip())
        plain = re.fullmatch(r"(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?", line.strip())
        if ctest:
            failed += int(ctest.group(1))
            passed += int(ctest.group(2)) - int(ctest.group(1))
        elif again: # they passed alone: the count of the first try is void
            failed -= int(again.group(1))
        elif plain:
            passed, failed, skipped = passed + int(plain.group(1)), failed + int(plain.group(2)), skipped + int(plain.group(3) or 0)
        elif pytest:
            for number, what in re.findall(r"(\d+) (\w+)", pytest.group(1)):
                passed += int(number) if what in ("passed", "xfailed") else 0
                failed += int(number) if what in ("failed", "error", "errors", "xpassed") else 0
                skipped += int(number) if what == "skipped" else 0
        elif node:
            number = int(node.group(2))
            passed, failed, skipped = (passed + number * (node.group(1) == "pass"), failed + number * (node.group(1) == "fail"),
                                       skipped + number * (node.group(1) == "skipped"))
    return passed, failed, skipped


def main(arguments):
    split = arguments.index("--")
    logs, suites, broken = pathlib.Path(arguments[0]), arguments[1:split], arguments[split + 1:]
    total = [0, 0, 0]
    for suite in suites:
        log = logs / f"{suite}.log"
        found = counts(log.read_text(errors="replace")) if log.exists() else (0, 0, 0)
        if suite in broken and found[1] == 0:
            found = (found[0], 1, found[2])
        elif suite not in broken and found == (0, 0, 0):
            found = (1, 0, 0)
        print(f"   {suite:10} {found[0]:5} passed {found[1]:4} failed {found[2]:4} skipped{'   FAILED' if suite in broken else ''}")
        total = [a + b for a, b in zip(total, found)]
    skipped = f", {total[2]} skipped" if total[2] else ""
    print(f"{total[0]} passed, {total[1]} failed{skipped}")
    return 1 if total[1] or broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
