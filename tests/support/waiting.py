# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition, with a deadline: what tests do instead of sleeping. Standard library only."""
import time


def eventually(check, seconds=15, what="it did not happen in time"):
    """The first true value of check(); fails after `seconds` with `what` (a text, or a function that makes one)."""
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"after {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.01)
