# SPDX-License-Identifier: Apache-2.0
"""The verbs of deploy/local/stack. Exit status: 0 done, 1 failed, 2 usage, 3 (status) not everything is up."""
import argparse
import json
import os
import pathlib
import shlex
import sys

from .stack import Stack, StackError, tail

CLONE = pathlib.Path(__file__).resolve().parents[3]


def scale_argument(text):
    service, _, count = text.partition("=")
    if not service or not count.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: must be SERVICE=NUMBER, such as lifecycle=3")
    return service, int(count)


def arguments(argv):
    parser = argparse.ArgumentParser(prog="stack", description="The one-machine stack of this clone, on loopback only.",
                                     epilog="Exit status: 0 done, 1 failed, 2 usage, 3 (status) not everything is up.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name, text):
        out = verbs.add_parser(name, help=text, description=text)
        return out

    up = verb("up", "start what is not running, wait until all is ready, print the table")
    up.add_argument("--scale", action="append", default=[], type=scale_argument, metavar="lifecycle=N", help="replicas of a service")
    up.add_argument("--only", metavar="NAME,NAME", help="just these members (tests that need only back ends)")
    up.add_argument("--json", action="store_true", help="print the table as JSON")
    down = verb("down", "end exactly what up started, sandboxes too; the data stays")
    down.add_argument("--purge", action="store_true", help="remove the data, logs and remembered ports as well")
    status = verb("status", "names, states, addresses, pids and log files; exit 0 when all are up, else 3")
    status.add_argument("--json", action="store_true")
    env = verb("env", "export lines for a shell: eval \"$(deploy/local/stack env)\"")
    env.add_argument("--service", metavar="NAME", help="the whole environment of this member instead")
    env.add_argument("--json", action="store_true")
    logs = verb("logs", "the end of the log files")
    logs.add_argument("name", nargs="?", metavar="NAME")
    logs.add_argument("-n", "--lines", type=int, default=40)
    logs.add_argument("-f", "--follow", action="store_true")
    for name, text in (("restart", "stop a member in an orderly way (if it runs) and start it"),
                       ("kill", "SIGKILL a member; nothing restarts it until restart NAME or up")):
        verb(name, text).add_argument("name", metavar="NAME")
    return parser.parse_args(argv)


def table(rows):
    head = ("NAME", "STATE", "ADDRESS", "PID", "LOG")
    cells = [head] + [(row["name"], row["state"], row["address"], str(row["pid"] or "-"), row["log"] or "-") for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head) - 1)]
    for line in cells:
        print("  ".join([text.ljust(width) for text, width in zip(line, widths)] + [line[-1]]))
    for row in rows:
        if row.get("reason"):
            print(f"{row['name']}: {row['reason']}")


def show(stack, as_json):
    rows = stack.describe()
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        table(rows)
    return 0 if all(row["state"] in ("up", "external") for row in rows) else 3


def run_up(stack, options):
    only = [name for name in (options.only or "").split(",") if name] or None
    stack.up(dict(options.scale), only)
    return 1 if show(stack, options.json) else 0


def run_down(stack, options):
    if not stack.down(options.purge):
        print("nothing was started", file=sys.stderr)
    return 0


def started(stack):
    if not stack.state.exists():
        raise StackError("the stack was never started: run deploy/local/stack up")


def run_status(stack, options):
    if not stack.state.exists():
        print("[]" if options.json else "the stack was never started")
        return 3
    return show(stack, options.json)


def run_env(stack, options):
    started(stack)
    if options.service:
        values = stack.service_environment(stack.member(options.service))
    else:
        values = stack.client_environment()
    if options.json:
        print(json.dumps(values, indent=1))
        return 0
    for name, value in values.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def run_logs(stack, options):
    started(stack)
    chosen = [stack.member(options.name)] if options.name else stack.members()
    files = [str(member.log) for member in chosen if member.log.exists()]
    if not files:
        raise StackError("no log file yet")
    if options.follow:
        os.execvp("tail", ["tail", "-n", str(options.lines), "-F", "--", *files])
    for member in chosen:
        if not options.name:
            print(f"==> {member.name} <==")
        text = tail(member.log, options.lines)
        print("\n".join(line[2:] for line in text.splitlines()))
    return 0


def run_restart(stack, options):
    started(stack)
    stack.restart(options.name)
    return 0


def run_kill(stack, options):
    started(stack)
    stack.kill(options.name)
    return 0


def main(argv):
    options = arguments(argv)
    try:
        return globals()[f"run_{options.verb}"](Stack(CLONE), options)
    except StackError as error:
        print(f"stack: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stack: interrupted; `stack down` ends what was started", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
