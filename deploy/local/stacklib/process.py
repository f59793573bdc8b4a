# SPDX-License-Identifier: Apache-2.0
"""Processes by identity. A pid alone names nobody: it is always looked at together with its start time and the boot it
belongs to, so that a recycled pid is never signalled."""
import os
import pathlib
import signal
import socket
import subprocess
import time

MARK = "SANDKEEP_STACK_ID"
MEMBER_MARK = "SANDKEEP_STACK_MEMBER"


def boot_id():
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat_fields(pid):
    """Fields of /proc/PID/stat from the state on (the name before may hold anything); None when there is no process."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def start_time(pid):
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def alive(record):
    """Is the process of this record {pid, start, boot} still the one that was started (and not a zombie)?"""
    if not record or not record.get("pid") or record.get("boot") != boot_id():
        return False
    fields = _stat_fields(record["pid"])
    return bool(fields) and int(fields[19]) == record["start"] and fields[0] not in "ZX"


def spawn(argv, env, log_path, cwd):
    """Starts a program in a session of its own with its output in log_path. Returns {pid, start, boot}."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    if log_path.exists() and log_path.stat().st_size > 16 * 1024 * 1024:
        log_path.replace(log_path.with_suffix(".log.1"))
    with open(log_path, "ab") as log:
        child = subprocess.Popen([str(part) for part in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 env=env, cwd=cwd, start_new_session=True, close_fds=True)
    # A child that dies at once stays a zombie (with its start time) until reap() looks at it.
    return {"pid": child.pid, "start": start_time(child.pid), "boot": boot_id()}


def reap(pid):
    """Exit status (negative: signal) when PID is a child of ours that ended, else None."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if done != pid:
        return None
    return os.waitstatus_to_exitcode(status)


def send(record, number):
    """Signals the process of the record through a pidfd that was checked after it was opened: no race with recycling."""
    if not alive(record):
        return False
    try:
        handle = os.pidfd_open(record["pid"])
    except OSError:
        return False
    try:
        if not alive(record):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)


def wait_gone(record, seconds):
    end = time.monotonic() + seconds
    while True:
        reap(record["pid"])
        if not alive(record):
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)


def session_pids(leader):
    """Pids of the session that `leader` opened."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat_fields(int(entry))
            if fields and int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(entry))
    return found


def marked(stack_id, member=None, program=None):
    """Records of all processes whose environment carries this stack's mark (and member name, and that run this program):
    what an interrupted `stack` could not write down."""
    wanted = {f"{MARK}={stack_id}".encode()}
    if member:
        wanted.add(f"{MEMBER_MARK}={member}".encode())
    me = os.getpid()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == me:
            continue
        try:
            environment = pathlib.Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            command = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted.issubset(environment) and (not program or command[0] == program.encode()):
            started = start_time(int(entry))
            if started is not None:
                found.append({"pid": int(entry), "start": started, "boot": boot_id()})
    return found


def uids_in_use(first, count):
    """Does any process run as one of these users? Those that ended and only wait to be looked at do not count."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            status = pathlib.Path(f"/proc/{entry}/status").read_text(errors="replace")
        except OSError:
            continue
        uids = status.partition("\nUid:")[2].partition("\n")[0].split()
        if "\nState:\tZ" not in status and any(first <= int(uid) < first + count for uid in uids):
            return True
    return False


def port_free(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def owns_port(record, port):
    """Does the process of the record (or one of its session) listen on this port? Guards against talking to a stranger
    that took the port between our choice and the start."""
    inodes, owners = set(), set()
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = pathlib.Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and fields[1].endswith(wanted):
                inodes.add(f"socket:[{fields[9]}]")
                owners.add(int(fields[7]))
    if not inodes:
        return False
    for pid in session_pids(record["pid"]):
        try:
            handles = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:  # not dumpable, and we are not root: as much as can be seen is whose the socket is
            if owners == {os.getuid()}:
                return True
            continue
        except OSError:
            continue
        for handle in handles:
            try:
                if os.readlink(f"/proc/{pid}/fd/{handle}") in inodes:
                    return True
            except OSError:
                continue
    return False
