#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A live tap: listens to everything Sandkeep says over NATS and checks every message against proto/.

As a program it wraps a run, and fails when the run fails or when a message was not as the contract says:

    tests/.venv/bin/python tests/contract/tap.py --url nats://127.0.0.1:4222 -- pytest tests/integration
    tests/.venv/bin/python tests/contract/tap.py --url "$SANDKEEP_NATS_URL" --seconds 60

As a fixture (conftest.py: `from tap import nats_tap`), or by hand:

    with Tap(url) as tap:
        …
    tap.assert_clean()

What it checks: a message on a subject below the prefix that no channel of proto/asyncapi.yaml has; payload and headers of
every event, dead letter, progress, final answer and RPC reply; one final answer per command and inbox, none after it;
event headers against subject and data; and over all lifecycle events of a record (also those it reads back from the
stream at the end) that `sequence` rises by exactly one, no ce-id is used twice for different things, `from` continues the
`to` before, moves are legal and epochs rise with claims only. An event that is published twice under one id is allowed
(at least once) when both are equal.

Commands and requests are the clients' and may be bad on purpose: they are only counted (`commands_invalid`). When the
server was restarted or wiped while it listened, what it could not hear is no fault: gaps are then counted, not failed."""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time

import nats
from catalog import Catalog, check_chain, split_records

FAULTS_MAX = 200  # kept in full; more are counted
REPLY_MEMORY_MAX = 200_000


class Tap:
    """One connection in a thread of its own. `from_start`: the tap runs from before the first event of every record, so
    the first sequence must be 1; with False the oldest event seen is taken as it is."""

    def __init__(self, url, prefix="sandbox", from_start=True, token=None, ignore=(), subjects=(">",)):
        self.url, self.prefix, self.from_start, self.token = url, prefix, from_start, token
        self.subjects = tuple(subjects)
        self.ignore = tuple(ignore)  # subjects of others below the prefix
        self.older = set()  # sandboxes whose records have a past that nobody published (made by a test): as with from_start=False
        # Where replicas are killed or stand still, a command may be answered by two of them. With True the very same final
        # answer may come again, another one may follow an answer that was to be retried (it is not stored), and whoever
        # woke up may still tell of progress.
        self.repeats = False
        self.finals = {}  # (inbox, command id) -> the final answer
        self.catalog = Catalog(prefix)
        self.faults = []
        self.fault_count = 0
        self.counts = {}
        self.events = {}  # ce-id -> (kind, data as text)
        self.lifecycle = {}  # sandboxId -> [(ce-id, kind, data)]
        self.answers = {}  # (inbox, command id) -> [number of commands, number of final answers]
        self.rpc_replies = {}  # reply subject -> method
        self.disconnects = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tap", daemon=True)
        self._ready = threading.Event()
        self._failure = None
        self._closing = False

    # ---- life --------------------------------------------------------------------------------------------------------
    def __enter__(self):
        self._thread.start()
        if not self._ready.wait(30) or self._failure:
            raise RuntimeError("the tap cannot listen at %s: %s" % (self.url, self._failure or "no answer"))
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self, settle=1.0):
        """Listens a moment longer, reads the event stream, checks the chains. Idempotent."""
        if not self._thread.is_alive():
            return
        done = asyncio.run_coroutine_threadsafe(self._finish(settle), self._loop)
        with contextlib.suppress(Exception):
            done.result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self):
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._listen())
        except Exception as failure:  # shown by __enter__
            self._failure = failure
            self._ready.set()
            return
        self._ready.set()
        self._loop.run_forever()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    async def _listen(self):
        async def disconnected():
            self.disconnects += not self._closing

        async def quiet(_):
            pass

        self._nc = await nats.connect(
            self.url, token=self.token, name="sandkeep-tap", max_reconnect_attempts=-1, reconnect_time_wait=0.1,
            disconnected_cb=disconnected, error_cb=quiet, pending_size=64 * 1024 * 1024,
        )
        # One subscription to everything, so that a request is seen before its reply; answers may go to any subject. But
        # a server believes then that somebody still waits for the pull of a replica that is gone, and sends commands
        # there until it expires: where replicas come and go, name the subjects.
        for subject in self.subjects:
            await self._nc.subscribe(subject, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await self._nc.flush()

    # ---- messages ----------------------------------------------------------------------------------------------------
    def _fault(self, text):
        self.fault_count += 1
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)

    def _count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    async def _on_message(self, message):
        try:
            self._look_at(message.subject, message.reply, dict(message.headers or {}), message.data)
        except Exception as failure:
            self._fault("%s: the tap itself failed: %r" % (message.subject, failure))

    def _look_at(self, subject, reply, headers, data):
        if subject.startswith("$") or reply.startswith("$JS.ACK."):
            return  # the server's own, and deliveries of what was seen when it was published
        if subject.startswith(self.prefix + "."):
            if not subject.startswith(self.ignore) or not self.ignore:
                self._ours(subject, reply, headers, data)
        elif subject in self.rpc_replies:
            if data or "Status" not in headers:
                self._rpc_reply(subject, data)
        else:
            self._answer(subject, headers, data)

    @staticmethod
    def _json(data):
        """ValueError for everything that is no JSON, also for what is nested too deep to be looked at."""
        try:
            return json.loads(data.decode("utf-8"))
        except RecursionError:
            raise ValueError("nested too deep") from None

    def _ours(self, subject, reply, headers, data):
        channel, parameters = self.catalog.route(subject)
        kind = subject[len(self.prefix) + 1 :].split(".", 1)[0]
        if kind == "cmd":
            self._command(channel, headers, data)
            return
        if kind == "rpc":
            method = subject.rsplit(".", 1)[1]
            if reply and channel and len(self.rpc_replies) < REPLY_MEMORY_MAX:
                self.rpc_replies[reply] = method
            self._count("requests" if reply else "hints")
            return
        if channel is None:
            self._fault("%s: no message of the contract has this subject" % subject)
            return
        if channel == "dead":
            self._count("dead letters")
            payload = None
        else:
            try:
                payload = self._json(data)
            except ValueError as error:
                self._fault("%s: not JSON: %s" % (subject, error))
                return
        if channel.startswith("event."):
            self._event(channel[len("event.") :], subject, headers, payload)
        else:
            self._report(subject, self.catalog.check(channel, headers, payload), data)

    def _report(self, subject, found, data):
        for text in found:
            self._fault("%s: %s — %s" % (subject, text, data[:400].decode("utf-8", "replace")))

    def _command(self, channel, headers, data):
        self._count("commands")
        payload = None
        with contextlib.suppress(ValueError):
            payload = self._json(data)
        if channel is None or payload is None or self.catalog.check(channel, headers, payload):
            self._count("commands_invalid")
        inbox = headers.get("Sandbox-Reply-To")
        if inbox:
            command = payload.get("id") if isinstance(payload, dict) else None
            entry = self.answers.setdefault((inbox, command if isinstance(command, str) else None), [0, 0])
            entry[0] += 1

    def _answer(self, subject, headers, data):
        """On an inbox: only what answers a command that was seen, the rest belongs to others."""
        if not any(inbox == subject for inbox, _ in self.answers):
            return
        try:
            payload = self._json(data)
        except ValueError as error:
            self._fault("%s: the answer to a command is not JSON: %s" % (subject, error))
            return
        progress = "Sandbox-Progress" in headers
        self._count("progress" if progress else "answers")
        self._report(subject, self.catalog.check_answer(headers, payload), data)
        command = payload.get("id") if isinstance(payload, dict) else None
        entry = self.answers.get((subject, command)) or self.answers.get((subject, None))
        if entry is None and command is None:
            # A command whose id could be made out by us, but not by a stricter reader.
            entry = next(value for key, value in self.answers.items() if key[0] == subject)
        if entry is None:
            self._fault("%s: an answer to a command that was not sent there: %s" % (subject, data[:200]))
        elif progress:
            if entry[1] >= entry[0] and not self.repeats:
                self._fault("%s: progress after the final answer of %s" % (subject, command))
        else:
            before = self.finals.get((subject, command))
            again = before is not None and (before == payload or before.get("error", {}).get("retryable") is True)
            self.finals[subject, command] = payload
            if again and self.repeats and entry[1] >= entry[0]:
                self._count("answers again")
            else:
                entry[1] += 1

    def _rpc_reply(self, subject, data):
        method = self.rpc_replies[subject]
        self._count("replies")
        try:
            payload = self._json(data)
        except ValueError as error:
            self._fault("reply to %s: not JSON: %s" % (method, error))
            return
        self._report("reply to %s" % method, self.catalog.check_reply(method, payload), data)

    def _event(self, kind, subject, headers, payload):
        event_id = headers.get("ce-id", "")
        text = json.dumps(payload, sort_keys=True)
        known = self.events.get(event_id)
        if known is not None:
            if known != (kind, text):
                self._fault("%s: event id %s is used twice: %s and %s" % (subject, event_id, known[1][:200], text[:200]))
            self._count("events again")
            return
        self._count("events")
        self.events[event_id] = (kind, text)
        found = self.catalog.check_event(subject, headers, payload)
        self._report(subject, found, text.encode())
        if kind.startswith("lifecycle.") and not found:
            self.lifecycle.setdefault(payload["sandboxId"], []).append((event_id, kind, payload))

    # ---- the end -----------------------------------------------------------------------------------------------------
    async def _finish(self, settle):
        await asyncio.sleep(settle)
        with contextlib.suppress(Exception):
            await self._read_stream()
        self._closing = True
        with contextlib.suppress(Exception):
            await self._nc.close()
        self._check_chains()

    async def _read_stream(self):
        """Events that were stored while the tap was not connected, or before it came."""
        context = self._nc.jetstream(timeout=3)
        info = await context.stream_info("SANDBOX_EVENTS")
        if info.state.messages == 0:
            return
        subscription = await context.subscribe(self.prefix + ".evt.>", ordered_consumer=True)
        while True:
            try:
                message = await subscription.next_msg(timeout=2)
            except (asyncio.TimeoutError, nats.errors.TimeoutError):
                break
            channel, _ = self.catalog.route(message.subject)
            if channel is not None:
                with contextlib.suppress(ValueError):
                    self._event(channel[len("event.") :], message.subject, dict(message.headers or {}), self._json(message.data))
            if message.metadata.num_pending == 0:
                break
        await subscription.unsubscribe()

    def _check_chains(self):
        for sandbox, events in sorted(self.lifecycle.items()):
            for record in split_records(events):
                for text in check_chain(self.catalog.states, record, self.from_start and sandbox not in self.older):
                    if self.disconnects and ("sequence follows" in text or "first event" in text):
                        self._count("gaps while the server was away")
                    else:
                        self._fault(text)
        for (inbox, command), (asked, answered) in self.answers.items():
            if answered > asked:
                self._fault("%s: %d final answers to %d commands %s" % (inbox, answered, asked, command))

    # ---- results -----------------------------------------------------------------------------------------------------
    def unanswered(self):
        """(inbox, command id) of commands without a final answer so far; a client may have asked in vain on purpose."""
        return [key for key, (asked, answered) in self.answers.items() if answered == 0]

    def summary(self):
        parts = ["%d %s" % (count, what) for what, count in sorted(self.counts.items())]
        return "tap: %s; %d sandboxes; %d faults" % (", ".join(parts) or "nothing heard", len(self.lifecycle), self.fault_count)

    def assert_clean(self):
        self.stop()
        assert self.fault_count == 0, "\n".join([self.summary()] + self.faults)


try:
    import pytest
except ImportError:  # the program does not need it
    pytest = None
else:

    @pytest.fixture
    def nats_tap():
        """nats_tap(url, **options) -> a running Tap; at the end of the test it must be clean."""
        taps = []

        def start(url, **options):
            tap = Tap(url, **options)
            tap.__enter__()
            taps.append(tap)
            return tap

        yield start
        for tap in taps:
            tap.assert_clean()


def main():
    parser = argparse.ArgumentParser(description="Checks live traffic against proto/ while a command runs.")
    parser.add_argument("--url", default=os.environ.get("SANDKEEP_NATS_URL", "nats://127.0.0.1:4222"))
    parser.add_argument("--prefix", default=os.environ.get("SANDKEEP_SUBJECT_PREFIX", "sandbox"))
    parser.add_argument("--token", default=os.environ.get("SANDKEEP_NATS_TOKEN") or None)
    parser.add_argument("--late", action="store_true", help="sandboxes existed before: the first sequence seen may be any")
    parser.add_argument("--seconds", type=float, help="listen that long instead of wrapping a command")
    parser.add_argument("--report", help="write the faults and counts as JSON to this file")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- command and its arguments")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if bool(command) == (options.seconds is not None):
        parser.error("give a command or --seconds")
    status = 0
    with Tap(options.url, options.prefix, from_start=not options.late, token=options.token) as tap:
        if command:
            status = subprocess.call(command)
        else:
            time.sleep(options.seconds)
    for text in tap.faults:
        print("tap: FAULT %s" % text, file=sys.stderr)
    print(tap.summary(), file=sys.stderr)
    if options.report:
        with open(options.report, "w", encoding="utf-8") as out:
            json.dump({"counts": tap.counts, "faults": tap.faults, "faultCount": tap.fault_count,
                       "disconnects": tap.disconnects, "unanswered": tap.unanswered()}, out, indent=2)
    return status or (1 if tap.fault_count else 0)


if __name__ == "__main__":
    sys.exit(main())
