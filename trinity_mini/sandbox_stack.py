"""A deeper stack for the WASI interpreter, by three changes to its file before it is compiled.

As it comes, that CPython has 512 KiB for the calls of its own C code, used up by a `@cache` function that calls itself
59 times, and then dies. And it allows 500 such calls at once, whatever `sys.setrecursionlimit` says. Python's own calls
of plain functions need neither.
"""

from __future__ import annotations

PAGE = 1 << 16
PAGES = 1536  # of stack: 96 MiB; the deepest recursion we found takes 33
CALLS = 8000  # C calls at once: 2000 to 4000 of `@cache`, `max(f(x) for ...)`, `__init__`, a key of `sort`
MEMORY, GLOBAL = 5, 6  # sections of a WebAssembly module

# tstate->c_recursion_remaining = C_RECURSION_LIMIT in a new thread: i32.load 12, i32.const 500, i32.store 24
_LIMIT = bytes.fromhex("28020c 41f403 360218")


def deepened(module: bytes) -> bytes:
    """The module with PAGES of new memory above all it has, and the stack at their top; the old stack lies idle.

    Raises: ValueError if it is no module with one memory and the stack pointer as its one variable.
    """
    found, parts, at = set(), [module[:8]], 8
    while at < len(module):
        kind = module[at]
        length, start = _number(module, at + 1)
        at = start + length
        body = module[start:at]
        if kind == MEMORY:
            pages, end = _number(body, 2)
            top = pages + PAGES
            body = body[:2] + _bytes(top) + body[end:]
            if body[0] != 1 or (body[1] and _number(body, len(_bytes(top)) + 2)[0] < top):
                raise ValueError("not one memory that can grow")
        elif kind == GLOBAL:
            if MEMORY not in found or body[:4] != b"\x01\x7f\x01\x41":  # one, i32, variable, i32.const
                raise ValueError("no stack pointer")
            end = _number(body, 4)[1]
            body = body[:4] + _signed(top * PAGE) + body[end:]
        found.add(kind)
        parts.append(bytes([kind]) + _bytes(len(body)) + body)
    if not {MEMORY, GLOBAL} <= found:
        raise ValueError("no memory or no stack pointer")
    return b"".join(parts)


def more_calls(module: bytes) -> bytes:
    """The module with CALLS in place of 500. Raises: ValueError if the place is not there exactly once."""
    if module.count(_LIMIT) != 1:
        raise ValueError("not the interpreter we know")
    return module.replace(_LIMIT, _LIMIT[:4] + _signed(CALLS) + _LIMIT[6:])


def _number(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number in WebAssembly's writing (LEB128), and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _bytes(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int) -> bytes:
    """A number that is not negative in the writing for those that may be: its last byte stays under 64."""
    out = _bytes(value)
    return out if out[-1] < 64 else out[:-1] + bytes([out[-1] | 128, 0])
