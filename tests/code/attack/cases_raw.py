# SPDX-License-Identifier: Apache-2.0
"""A Python task that makes any system call it likes (raw_calls.py): what is left are the kernel's walls. The rows by
number do one call each; the others go where a filter, an rlimit, a namespace or an inherited descriptor is at stake."""
from table import OS_PRELUDE, RAW_PRELUDE, Row, anything, either, fails, texts, value

ROWS = []


def row(name, code, gets, prelude=RAW_PRELUDE, **options):
    ROWS.append(Row("raw: " + name, "python", prelude + code, gets, **options))


def calls(name, *expressions, gets=texts("EPERM"), **options):
    row(name, "def main():\n    return [" + ", ".join(expressions) + "]\n", gets, **options)


row("the attacker really makes system calls", """def main():
    return [raw(39)[0] > 1, raw(102)[0] >= 100000, raw(16, 999, 0x5401)[1], attempt(257, -100, buffer(b"/usr/lib/python3.11/os.py"), 0)]
""", value([True, True, 9, "ok"]))

# Number and arguments of calls that no task has a use for: each must be EPERM, which is the filter's answer.
SINGLE = {
    "ptrace attach to pid 1": (101, 16, 1), "ptrace traceme": (101, 0), "ptrace seize the parent": (101, 0x4206, 1),
    "process_vm_readv": (310, 1, 0, 0), "process_vm_writev": (311, 1, 0, 0), "process_madvise": (440, 1), "kcmp": (312, 1, 1), "process_mrelease": (448, 1),
    "pidfd_open": (434, 1, 0), "pidfd_getfd": (438, 0, 0, 0), "pidfd_send_signal": (424, 0, 9),
    "kill pid 1": (62, 1, 9), "kill all": (62, -1, 9), "kill the group": (62, 0, 9), "tkill": (200, 1, 9), "tgkill": (234, 1, 1, 9),
    "rt_sigqueueinfo": (129, 1, 9), "rt_tgsigqueueinfo": (297, 1, 1, 9), "fork": (57,), "vfork": (58,), "clone": (56, 17), "clone3": (435, 0, 88),
    "execve": (59, 0), "execveat": (322, 0, 0, 0, 0, 0x1000), "memfd_create": (319, 0, 0), "memfd_secret": (447, 0),
    "unshare user namespace": (272, 0x10000000), "unshare mounts": (272, 0x20000), "setns": (308, 0, 0), "mount": (165, 0), "umount2": (166, 0),
    "pivot_root": (155, 0), "chroot": (161, 0), "open_tree": (428, -100), "move_mount": (429, 0), "fsopen": (430, 0), "fsmount": (432, 0), "fspick": (433, 0),
    "mount_setattr": (442, 0), "bpf": (321, 0), "perf_event_open": (298, 0), "userfaultfd": (323, 1), "keyctl": (250, 0), "add_key": (248, 0),
    "request_key": (249, 0), "io_uring_setup": (425, 8), "io_uring_enter": (426, 0), "io_uring_register": (427, 0), "shmget": (29, 1, 4096, 0o1777),
    "shmat": (30, 0), "msgget": (68, 1, 0o1777), "semget": (64, 1, 1, 0o1777), "mq_open": (240, 0, 66), "personality": (135, 0x40000),
    "modify_ldt": (154, 0), "arch_prctl": (158, 0x1001, 0), "prctl dumpable": (157, 4, 1), "prctl ptracer": (157, 0x59616D61, 1), "prctl mm": (157, 35, 1),
    "seccomp": (317, 0), "setuid": (105, 0), "setgid": (106, 0), "setresuid": (117, 0, 0, 0), "setresgid": (119, 0, 0, 0), "setgroups": (116, 0, 0),
    "setfsuid": (122, 0), "capset": (126, 0), "prlimit64 of itself": (302, 0, 7, 0, 0), "prlimit64 of pid 1": (302, 1, 7, 0, 0), "setrlimit": (160, 7, 0),
    "setpriority": (141, 0, 0, -20), "sched_setaffinity": (203, 0, 8, 0), "sched_setscheduler": (144, 0, 1), "sched_setattr": (314, 0), "ioprio_set": (251, 1, 0, 0),
    "open_by_handle_at": (304, 0), "name_to_handle_at": (303, 0), "mknod": (133, 0), "mknodat": (259, -100, 0), "symlink": (88, 0), "symlinkat": (266, 0),
    "link": (86, 0), "linkat": (265, 0), "chmod": (90, 0), "fchmod": (91, 0), "chown": (92, 0), "utimensat": (280, -100), "truncate": (76, 0),
    "fallocate": (285, 0), "socketpair": (53, 1, 1, 0), "connect": (42, 4), "bind": (49, 4), "listen": (50, 4), "accept": (43, 4), "sendto": (44, 4),
    "sendmsg with a descriptor": (46, 4), "recvmsg": (47, 4), "setsockopt": (54, 4), "shutdown": (48, 4, 2), "splice": (275, 0), "tee": (276, 0), "vmsplice": (278, 0),
    "sendfile": (40, 1, 0), "copy_file_range": (326, 0), "landlock_create_ruleset": (444, 0, 0, 1), "inotify_init": (253,), "fanotify_init": (300, 0),
    "timerfd_create": (283, 0, 0), "eventfd2": (290, 0, 0), "signalfd4": (289, -1), "epoll_create1": (291, 0), "quotactl": (179, 0), "swapon": (167, 0),
    "reboot": (169, 0), "sethostname": (170, 0, 0), "init_module": (175, 0), "finit_module": (313, 0), "kexec_load": (246, 0), "syslog": (103, 2), "acct": (163, 0),
    "settimeofday": (164, 0), "clock_settime": (227, 0), "adjtimex": (159, 0), "iopl": (172, 3), "ioperm": (173, 0), "mbind": (237, 0), "migrate_pages": (256, 1),
    "move_pages": (279, 1), "mlock": (149, 0), "mlockall": (151, 1), "mincore": (27, 0), "remap_file_pages": (216, 0), "pkey_mprotect": (329, 0), "pkey_alloc": (330, 0),
    "set_robust_list": (273, 0), "get_robust_list of pid 1": (274, 1), "dup2": (33, 0, 1), "pipe2": (293, 0), "setsid": (112,), "setpgid": (109, 0, 0), "chdir": (80, 0),
    "creat": (85, 0), "membarrier": (324, 0), "ptrace by another number": (1000,), "vhangup": (153,), "lookup_dcookie": (212,), "get_mempolicy": (239, 0),
    "timer_create": (222, 0, 0), "waitid": (247, 0, 1), "wait4": (61, -1), "set_tid_address": (218, 0), "rseq": (334, 0), "sysfs": (139, 1), "ustat": (136, 0),
}
_names = list(SINGLE)
for _at in range(0, len(_names), 8):  # a task for eight of them: the machine is not ours alone
    calls(", ".join(_names[_at: _at + 8]), *[f"attempt({', '.join(map(str, SINGLE[name]))})" for name in _names[_at: _at + 8]])

calls("sockets of every family", *[f"attempt(41, {family}, {kind}, 0)" for family in (1, 2, 10, 16, 17, 38, 40, 44) for kind in (1, 2, 3)])
calls("mmap beyond what is counted", "attempt(9, 0, 4096, 3, 0x21, -1, 0)", "attempt(9, 0, 4096, 3, 0x23, -1, 0)", "attempt(9, 0, 4096, 3, 0x122, -1, 0)",
      "attempt(9, 0, 4096, 3, 0x40022, -1, 0)", "attempt(9, 0, 4096, 3, 0x2022, -1, 0)", "attempt(9, 0, 4096, 7, 0x22, -1, 0)", "attempt(9, 0, 4096, 5, 0x22, -1, 0)")
calls("memory made executable", "attempt(10, SPACE & ~0xFFF, 4096, 7)", "attempt(10, SPACE & ~0xFFF, 4096, 5)", "attempt(10, SPACE & ~0xFFF, 4096, 0x1000003)")
calls("madvise that looks at others or breaks memory", "attempt(28, SPACE & ~0xFFF, 4096, 12)", "attempt(28, SPACE & ~0xFFF, 4096, 100)", "attempt(28, SPACE & ~0xFFF, 4096, 101)",
      "attempt(28, SPACE & ~0xFFF, 4096, 9)", "attempt(28, SPACE & ~0xFFF, 4096, 21)")
calls("mremap to a chosen place", "attempt(25, SPACE & ~0xFFF, 4096, 4096, 3, 0x10000000)", "attempt(25, SPACE & ~0xFFF, 4096, 4096, 5)")
calls("fcntl that is not for tasks", *[f"attempt(72, {fd}, {command}, 1)" for fd in (0, 4) for command in (0, 4, 8, 10, 1024, 1026, 1031, 1033)])
calls("ioctl that is not for tasks", *[f"attempt(16, 0, {request}, SPACE)" for request in (0x5412, 0x541C, 0x541B, 0x5480, 0x40049409, 0xB701, 0x5423, 0x8905)])
calls("futex with inheritance and requeueing", *[f"attempt(202, SPACE, {operation}, 1, 0, SPACE + 8, 0)" for operation in (3, 4, 5, 6, 7, 8, 11, 12)])
calls("arguments with high bits", "attempt(41, 2 | 1 << 40, 1, 0)", "attempt(9, 0, 4096, 3 | 1 << 33 | 4, 0x22, -1, 0)", "attempt(72, 0, 0 | 1 << 32, 1)",
      "attempt(16, 0, 0x5412 | 1 << 33, SPACE)", gets=texts("EPERM|EINVAL|EBADF"))
row("x32", "def main():\n    return raw(0x40000000 | 39)\n", fails("crashed|killed"))
row("x32 mmap", "def main():\n    return raw(0x40000000 | 9, 0, 4096, 7, 0x22, -1, 0)\n", fails("crashed|killed"))
row("a filter of its own on top", "def main():\n    return [attempt(157, 22, 2, SPACE), attempt(317, 1, 0, SPACE), attempt(157, 38, 0)]\n", texts("EPERM"))

# ---- files, by the kernel ----
PATHS = ("/etc/passwd", "/etc/shadow", "/etc/hosts", "/etc/resolv.conf", "/proc/self/mem", "/proc/self/environ", "/proc/1/environ", "/proc/1/fd/0", "/proc/self/exe",
         "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/fs/cgroup", "/dev/mem", "/dev/kmsg", "/dev/shm", "/dev/pts/0",
         "/root", "/home", "/var/run/docker.sock", "/run", "/boot", "/bin/sh", "/usr/bin/python3", "../../../../etc/passwd", "/tmp/../../etc/passwd", "/work", "/opt")
calls("open of what is not there", *[f"attempt(257, -100, buffer({path.encode()!r}), {flags})" for path in PATHS for flags in (0, 0x200000)],
      gets=texts("ENOENT|EACCES"))
calls("openat2 and others by number", "attempt(437, -100, buffer(b'/etc/passwd'), buffer(bytes(24)), 24)", "attempt(2, buffer(b'/etc/passwd'), 0)", "attempt(85, buffer(b'/tmp/x'), 511)")
calls("writes outside", *[f"attempt(257, -100, buffer({path!r}), 0x41, 511)" for path in (b"/x", b"/usr/x", b"/usr/lib/python3.11/x", b"/etc/x", b"/dev/x")],
      "attempt(83, buffer(b'/x'), 511)", "attempt(82, buffer(b'/usr/lib/python3.11'), buffer(b'/tmp/x'))", "attempt(84, buffer(b'/usr'))", "attempt(87, buffer(b'/usr/lib/python3.11/os.py'))",
      "attempt(257, -100, buffer(b'/usr/lib/python3.11/os.py'), 1)", "attempt(257, -100, buffer(b'/usr/lib/python3.11/os.py'), 0x201)",
      gets=texts("EROFS|EACCES|ENOENT|EPERM|EXDEV|18"))
row("the root is not left by descriptors", """def main():
    found = []
    for fd in range(64):
        for path in (b"..", b"../..", b"../../../etc/passwd", b"etc/passwd"):
            if attempt(257, fd, buffer(path), 0) == "ok":
                found.append((fd, path.decode()))
    return found
""", value([]))
row("its /tmp holds no more than it may, holes and many files included", """def main():
    fd = raw(257, -100, buffer(b"/tmp/big"), 0x42, 384)[0]
    block, total = buffer(b"x" * 65536), 0
    while True:
        n = raw(1, fd, block, 65536)[0]
        if n <= 0:
            break
        total += n
    second = raw(257, -100, buffer(b"/tmp/other"), 0x42, 384)[0]
    n = raw(1, second, block, 65536)[0]
    return [total <= 16 << 20, n <= 65536, attempt(77, second, 1 << 40)]
""", either(texts("True|EFBIG|EINVAL|EPERM|EBADF"), fails("output")))

# ---- limits ----
row("memory by mmap alone", """def main():
    total = 0
    while raw(9, 0, 1 << 20, 3, 0x22, -1, 0)[0] != -1:
        total += 1
    return total <= 400
""", value(True))
row("memory by brk, stack and private maps of files", """def main():
    top = raw(12, 0)[0]
    grown = raw(12, top + (1 << 30))[0] > top
    fd = raw(257, -100, buffer(b"/usr/lib/python3.11/os.py"), 0)[0]
    maps = 0
    while maps < 2000000 and raw(9, 0, 1 << 20, 3, 0x2, fd, 0)[0] != -1:
        maps += 1
    return [grown, maps < 2000]
""", value([False, True]))
row("many small maps", """def main():
    n = 0
    while n < 20000 and raw(9, 0, 4096, 3 if n % 2 else 1, 0x22, -1, 0)[0] != -1:
        n += 1
    return n > 0
""", either(value(True), fails("timeout|memory|error")), timeout_ms=3000)
row("descriptors until there are none", """def main():
    n = 0
    while raw(257, -100, buffer(b"/tmp", 16), 0)[0] != -1:
        n += 1
        if n > 5000:
            return n
    return n <= 64
""", value(True))
row("signals it sets for itself do not keep it alive", """def main():
    for number in range(1, 65):
        raw(13, number, buffer(bytes([1] + [0] * 31)), 0, 8)
    raw(14, 0, buffer(b"\\xff" * 8), 0, 8)
    raw(38, 0, buffer(bytes(32)), 0)
    while True:
        pass
""", fails("timeout"), timeout_ms=500)
row("sleeping beyond its time", """def main():
    raw(14, 0, buffer(b"\\xff" * 8), 0, 8)
    while True:
        raw(35, buffer((1000).to_bytes(8, "little") + bytes(8)), 0)
""", fails("timeout"), timeout_ms=500)
row("stopping itself", "def main():\n    return [attempt(62, raw(39)[0], 19), attempt(200, raw(39)[0], 19)]\n", texts("EPERM"))
row("alarm as a signal to nobody else", "def main():\n    raw(37, 0)\n    return raw(110)[0] in (0, 1)\n", value(True))

# ---- descriptors it was born with ----
row("which descriptors there are", """def main():
    kinds = []
    for fd in range(1024):
        result, error = raw(72, fd, 3, 0)
        if result != -1:
            kinds.append(fd)
    return len(kinds) <= 6
""", value(True))
row("clocks and randomness of the kernel work, and cannot be set", """def main():
    return [attempt(228, 1, SPACE), attempt(228, 0, SPACE), attempt(318, SPACE, 32, 0), attempt(227, 0, SPACE), attempt(305, 0, SPACE)]
""", value(["ok", "ok", "ok", "EPERM", "EPERM"]))
row("no memory of the host: no token in all that it can read", """import secrets
def main(needle):
    # Its own heap and what it maps: the needle is given in two halves, so that it is whole nowhere of its own accord.
    word_, found = bytes.fromhex(needle[:2]), 0
    top = raw(12, 0)[0]
    heap = text(top - (1 << 20), 1 << 20)
    return heap.count(b"SANDBOX_TOKEN=") + heap.count(b"SANDKEEP_CODE_")
""", value(0), variables={"needle": "4142"})

# ---- result and broker line: descriptors found by what they are, written to past the language ----
FIND = OS_PRELUDE + """def find():
    fds = []
    for fd in range(3, 256):
        try:
            os.get_inheritable(fd)
            fds.append(fd)
        except OSError:
            pass
    import stat
    pipes = [fd for fd in fds if stat.S_ISFIFO(os.fstat(fd).st_mode)]
    sockets = [fd for fd in fds if stat.S_ISSOCK(os.fstat(fd).st_mode)]
    return pipes[0], sockets[0]
def frame(text):
    return len(text).to_bytes(4, 'little') + text
def put(fd, data):
    while data:
        data = data[os.write(fd, data):]
"""


def lines(name, code, gets, **options):
    ROWS.append(Row("lines: " + name, "python", FIND + "def main():\n    result, rpc = find()\n" + code, gets, **options))


CRASHED = fails("crashed|output|killed")
lines("junk on the result", "    put(result, b'junk' * 10)\n    return 1\n", CRASHED)
lines("zeros on the result", "    put(result, bytes(4))\n    return 1\n", CRASHED)
lines("a forged frame and then its own", "    put(result, frame(b'{\"ok\":true,\"value\":\"forged\",\"log\":\"\"}'))\n    return 1\n", CRASHED)
lines("a forged frame alone is its own result", "    put(result, frame(b'{\"ok\":true,\"value\":\"mine\",\"log\":\"\"}'))\n    os._exit(0)\n", value("mine"))
lines("a forged frame and a crash", "    put(result, frame(b'{\"ok\":true,\"value\":\"forged\",\"log\":\"\"}'))\n    os._exit(3)\n", fails("crashed"))
lines("a forged frame with an end it may not claim", "    put(result, frame(b'{\"ok\":false,\"code\":\"killed\",\"message\":\"x\",\"type\":\"E\",\"log\":\"\"}'))\n    os._exit(0)\n", fails("error|crashed"))
lines("a forged frame that is no JSON", "    put(result, frame(b'{\"ok\":true,\"value\":' + b'[' * 100000))\n    os._exit(0)\n", CRASHED)
lines("a forged frame with members of the answer", "    put(result, frame(b'{\"ok\":true,\"value\":1,\"log\":\"\",\"success\":true,\"data\":{}}'))\n    os._exit(0)\n", anything)
lines("a forged move", "    put(result, frame(b'{\"move\":\"../../etc\"}'))\n    os._exit(0)\n", CRASHED)
lines("a move without an end", "    put(result, frame(b'{\"move\":\"numpy\"}'))\n    os._exit(0)\n", fails())
lines("a frame that claims 4 GiB", "    put(result, b'\\xff\\xff\\xff\\xff' + b'x' * 1000)\n    os._exit(0)\n", CRASHED)
lines("half a frame", "    put(result, b'\\x64\\0\\0\\0{\"ok\"')\n    os._exit(0)\n", CRASHED)
lines("half a length", "    put(result, b'\\x64')\n    os._exit(0)\n", CRASHED)
lines("a million frames on the result", "    for i in range(1000): put(result, frame(b'{}') * 1000)\n    return 1\n", CRASHED)
lines("a flood on the result", "    while True: put(result, b'x' * 65536)\n", CRASHED)
lines("the result closed", "    os.close(result)\n    return 1\n", CRASHED)
lines("the result closed, and an endless task", "    os.close(result)\n    while 1: pass\n", fails("timeout|crashed|killed"), timeout_ms=700)
lines("result and line swapped", "    os.write(rpc, frame(b'{\"ok\":true,\"value\":1,\"log\":\"\"}'))\n    import time\n    time.sleep(1)\n    return 1\n", CRASHED)
lines("the line closed", "    os.close(rpc)\n    return attempt(lambda: http_request('http://127.0.0.1/'))\n", texts("RuntimeError|OSError|ConnectionError|BrokenPipeError"))
lines("reading the result and the line", "    os.set_blocking\n    return [name_of(os.read, result, 1)]\n", texts("EBADF"))
ASK = "    import json, time\n    def ask(**m): return frame(json.dumps(m).encode())\n"
for _what, _code in {
    "junk": "put(rpc, b'junk' * 100)",
    "a length of zero": "put(rpc, bytes(4))",
    "a length of 4 GiB": "put(rpc, b'\\xff' * 4)",
    "a length of 2 GiB": "put(rpc, b'\\0\\0\\0\\x80')",
    "not JSON": "put(rpc, frame(b'{nope'))",
    "an array": "put(rpc, frame(b'[1]'))",
    "an unknown type": "put(rpc, ask(id=1, type='shell', url='http://127.0.0.1/'))",
    "no type": "put(rpc, ask(id=1, url='http://127.0.0.1/'))",
    "no id": "put(rpc, ask(type='http_request', url='http://127.0.0.1/', method='GET', headers={}))",
    "an id that is a text": "put(rpc, ask(id='1', type='http_request', url='http://127.0.0.1/', method='GET', headers={}))",
    "an id that is negative": "put(rpc, ask(id=-1, type='http_request', url='http://127.0.0.1/', method='GET', headers={}))",
    "an id that is huge": "put(rpc, ask(id=10 ** 30, type='http_request', url='http://127.0.0.1/', method='GET', headers={}))",
    "the same id twice": "put(rpc, ask(id=7, type='http_request', url='http://127.0.0.1/', method='GET', headers={}) * 2)",
    "an id of the past": "put(rpc, ask(id=7, type='http_request', url='http://127.0.0.1/', method='GET', headers={}) + ask(id=6, type='http_request', url='http://127.0.0.1/', method='GET', headers={}))",
    "invalid UTF-8": "put(rpc, frame(b'{\"id\":1,\"type\":\"http_request\",\"url\":\"\\xff\"}'))",
    "nesting": "put(rpc, frame(b'{\"id\":1,\"headers\":' + b'[' * 50000))",
}.items():
    lines(f"{_what} to the broker", ASK + f"    {_code}\n    time.sleep(2)\n    return 'still here'\n", CRASHED)
lines("a million requests of nothing to the broker", ASK + "    for i in range(1000): put(rpc, frame(b'{}') * 1000)\n    time.sleep(2)\n    return 'still here'\n", CRASHED)
lines("half a frame to the broker and an end", ASK + "    put(rpc, b'\\x64\\0\\0\\0{\"id\":1')\n    return 1\n", either(value(1), CRASHED))
lines("more requests than it may have, past the language", ASK + """    got = b''
    for i in range(1, 200):
        put(rpc, ask(id=i, type='http_request', url='http://127.0.0.1/', method='GET', headers={}))
        head = os.read(rpc, 4)
        size, got = int.from_bytes(head, 'little'), b''
        while len(got) < size:
            got += os.read(rpc, size - len(got))
        if b'limit' in got:
            return i
""", value(31))
lines("answers that it never reads", ASK + """    sent = 0
    try:
        for i in range(1, 100000):
            put(rpc, ask(id=i, type='http_request', url='http://127.0.0.1/', method='GET', headers={}))
    except BaseException:
        pass
    return 'written'
""", fails("timeout|crashed|killed"), timeout_ms=1500)
lines("a body of 100 MB that is announced and comes in drops", ASK + """    put(rpc, (100 << 20).to_bytes(4, 'little'))
    for i in range(10):
        put(rpc, b'x')
        time.sleep(0.05)
    time.sleep(1)
    return 'still here'
""", CRASHED)
