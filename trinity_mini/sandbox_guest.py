"""What runs inside a guest interpreter, beside code that a model wrote. Sent there as text; imports nothing of ours.

A guest is one of three:
- solve: runs the submission, then answers calls to its functions, as often as asked;
- examine: runs the tests in an interpreter where no submission ever was. A function of the submission is a stand-in
  that sends its arguments out and gets plain data back, so the submission cannot touch what judges it;
- both: submission and tests in one interpreter, for tests that must reach inside. Weaker: see sandbox.py.

Frames go over descriptors 0 and 1 (a letter, a length, a line feed, the content); what is printed goes to 2.
"""

from __future__ import annotations

import builtins
import os
import sys
from typing import Any

MOST = 16 << 20  # bytes of one frame
ITEMS = 100_000  # of an iterator that a function returned
SILENT = (StopIteration, StopAsyncIteration)  # inside `map`, these would end a loop of the tests early, without a word


class Foreign(Exception):
    """A value that is no plain data."""


# --- plain data as bytes: a letter, a count, a colon, then the content ------------------------------------------------

CONTAINERS = {list: b"L", tuple: b"T", set: b"E", frozenset: b"Z"}
MAKERS: dict[bytes, Any] = {v: k for k, v in CONTAINERS.items()}
MAKERS[b"G"] = iter
MAKERS[b"A"] = lambda items: range(*items)
MAKERS[b"D"] = lambda items: dict(zip(items[::2], items[1::2], strict=True))
ATOMS: dict[bytes, Any] = {
    b"N": lambda body: None,
    b"B": lambda body: body == b"1",
    b"I": lambda body: int(body, 16),  # hexadecimal: no limit on digits
    b"R": float,
    b"C": lambda body: complex(body.decode("ascii")),
    b"S": lambda body: body.decode("utf-8", "surrogatepass"),
    b"Y": lambda body: body,
}


def encode(value: Any) -> bytes:
    """Plain data as bytes. A subclass of a plain type becomes that type, an iterator the list of its items.

    Raises: Foreign for anything else, RecursionError for a value inside itself.
    """
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def _encode(value: Any, parts: list[bytes]) -> None:
    if value is None:
        parts.append(b"N0:")
    elif value is True or value is False:
        parts.append(b"B1:1" if value else b"B1:0")
    elif isinstance(value, int):
        _atom(b"I", b"%x" % value, parts)
    elif isinstance(value, float):
        _atom(b"R", float.__repr__(value).encode("ascii"), parts)
    elif isinstance(value, complex):
        _atom(b"C", complex.__repr__(value).encode("ascii"), parts)
    elif isinstance(value, str):
        _atom(b"S", str.encode(value, "utf-8", "surrogatepass"), parts)
    elif isinstance(value, bytes | bytearray):
        _atom(b"Y", bytes(value), parts)
    elif isinstance(value, dict):
        _items(b"D", [x for pair in dict.items(value) for x in pair], parts)
    elif isinstance(value, range):
        _items(b"A", [value.start, value.stop, value.step], parts)
    elif hasattr(type(value), "__next__"):
        _items(b"G", [x for x, _ in zip(value, range(ITEMS), strict=False)], parts)
    elif hasattr(type(value), "__index__"):  # numpy's integers
        _atom(b"I", b"%x" % int(value), parts)
    else:
        for kind, letter in CONTAINERS.items():
            if isinstance(value, kind):
                _items(letter, list(kind.__iter__(value)), parts)
                return
        name = type(value).__name__
        raise Foreign(f"a{'n' if name[0] in 'AEIOUaeiou' else ''} {name}, which is no plain data")


def _atom(letter: bytes, body: bytes, parts: list[bytes]) -> None:
    parts.append(b"%b%d:%b" % (letter, len(body), body))


def _items(letter: bytes, items: list, parts: list[bytes]) -> None:
    parts.append(b"%b%d:" % (letter, len(items)))
    for item in items:
        _encode(item, parts)


def decode(data: bytes) -> Any:
    """What `encode` was given. Builds nothing but plain data, whatever the bytes. Raises: ValueError."""
    value, end = _decode(data, 0)
    if end != len(data):
        raise ValueError("bytes are left over")
    return value


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    colon = data.index(b":", at, at + 24)
    letter, count, at = data[at : at + 1], int(data[at + 1 : colon]), colon + 1
    if not 0 <= count <= len(data):
        raise ValueError("a count that cannot be")
    if letter in ATOMS:
        return ATOMS[letter](data[at : at + count]), at + count
    items = []
    for _ in range(count):
        item, at = _decode(data, at)
        items.append(item)
    return MAKERS[letter](items), at


# --- frames -----------------------------------------------------------------------------------------------------------


def send(letter: bytes, content: bytes = b"", write: Any = os.write) -> None:
    if len(content) > MOST:
        letter, content = b"x", b"too much output"
    data = b"%b%d\n%b" % (letter, len(content), content)
    while data:
        data = data[write(1, data[: 1 << 16]) :]


def receive(read: Any = os.read) -> tuple[bytes, bytes]:
    """The next frame: its letter and content. Raises: EOFError when nobody is there any more."""

    def exactly(n: int) -> bytes:
        parts = []
        while n:
            part = read(0, min(n, 1 << 16))
            if not part:
                raise EOFError
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    head = exactly(1)
    while not head.endswith(b"\n"):
        head += exactly(1)
    return head[:1], exactly(int(head[1:]))


def why(error: BaseException) -> bytes:
    """An error in one short line."""
    try:
        text = " ".join(str(error).split())[:300]
    except BaseException:
        text = ""
    name = type(error).__name__
    return f"{name}: {text}".removesuffix(": ").encode("utf-8", "replace")


def module(name: str) -> dict[str, Any]:
    """The namespace of a new, empty module; registered, since dataclasses look theirs up."""
    made = sys.modules[name] = type(sys)(name)
    return made.__dict__


def execute(text: bytes, name: str, namespace: dict[str, Any]) -> None:
    exec(compile(text.decode("utf-8", "surrogatepass"), name + ".py", "exec", dont_inherit=True), namespace)


# --- the three guests -------------------------------------------------------------------------------------------------


def solve() -> None:
    namespace = module("solution")
    try:
        execute(receive()[1], "solution", namespace)
    except BaseException as e:
        return send(b"x", why(e))
    send(b"r")
    objects: list[Any] = []
    while True:
        target, method, args, named = decode(receive()[1])
        try:
            if isinstance(target, int):
                f = objects[target]
            elif target in namespace:
                f = namespace[target]
            else:
                raise NameError(f"name {target!r} is not defined")
            made = f(*args, **named) if method is None else getattr(f, method)(*args, **named)
            if isinstance(f, type) and method is None and f.__module__ == "solution":
                objects.append(made)
                sys.stdout.flush()
                send(b"o", b"%d" % (len(objects) - 1))
                continue
            try:
                answer = encode(made)
            except Foreign as e:
                raise TypeError(f"{target}() returned {e}") from None
            sys.stdout.flush()
            send(b"v", answer)
        except BaseException as e:
            send(b"e", raised(e))


def raised(error: BaseException) -> bytes:
    """An exception as plain data: the name of its first class that is Python's own, and what it was given."""
    name = next((c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"), "Exception")
    try:
        return encode((name, tuple(error.args)))
    except BaseException:
        return encode((name, (why(error).decode("utf-8"),)))


def again(content: bytes) -> Exception:
    """The exception that `raised` described, of Python's own class; RuntimeError for what tests never expect."""
    name, args = decode(content)
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, SILENT):
        try:
            return kind(*args)
        except TypeError:
            pass
    return RuntimeError(f"{name}: {args}")


class Remote:
    """Stands for a function, a class or an object of the submission, which lives in another interpreter."""

    def __init__(self, target: str | int) -> None:
        self._target = target

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._ask(None, args, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **named: self._ask(name, args, named)

    def _ask(self, method: str | None, args: tuple, named: dict[str, Any]) -> Any:
        try:
            call = encode((self._target, method, args, named))
        except Foreign as e:
            raise Foreign(f"the tests give {self._target!r} {e}") from None
        send(b"q", call)
        letter, content = receive()
        if letter == b"v":
            return decode(content)
        if letter == b"o":
            return Remote(int(content))
        if letter == b"e":
            raise again(content)
        raise RuntimeError(content.decode("utf-8", "replace"))


def examine() -> None:
    functions, tests = decode(receive()[1])
    namespace = module("tests")
    namespace.update((name, Remote(name)) for name in functions)
    try:
        execute(tests, "tests", namespace)
    except BaseException as e:
        return send(b"u" if isinstance(e, Foreign) else b"x", why(e))
    send(b"p")


def both() -> None:
    # Held in locals: the submission may replace what modules hold.
    ask, tell, run, show, read, write, end = receive, send, execute, why, os.read, os.write, os._exit
    path, loaded, screen = list(sys.meta_path), set(sys.modules), sys.stdout
    functions = vars(builtins)
    own = dict(functions)
    namespace = module("solution")
    module("__main__")  # what was there is this harness
    try:
        run(ask()[1], "solution", namespace)
    except BaseException as e:
        return tell(b"x", show(e))
    functions.clear()
    functions.update(own)
    sys.meta_path[:], sys.stdout = path, screen
    sys.settrace(None)
    sys.setprofile(None)
    for name in [n for n in namespace if n in own and not n.startswith("__")]:
        del namespace[name]  # an `abs` or `sorted` of its own would judge for it
    for name in [n for n in sys.modules if n.startswith(("unittest", "doctest")) and n not in loaded]:
        del sys.modules[name]
    tell(b"r", b"", write)
    content = ask(read)[1]
    secret, tests = content[:32], content[32:]
    try:
        run(tests, "tests", namespace)
    except BaseException as e:
        tell(b"x", show(e), write)
        end(0)
    tell(b"p", secret, write)
    end(0)


def main(mode: str) -> None:
    sys.stdin = open(os.devnull) if os.path.exists(os.devnull) else None
    sys.stdout = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    builtins.exit = builtins.quit = sys.exit
    send(b"h")
    {"solve": solve, "examine": examine, "both": both}[mode]()
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
