"""What runs inside a guest interpreter, beside code that a model wrote. Sent there as text, after the text of
sandbox_data.py and without the import of it.

A guest is one of three:
- solve: runs the submission, then answers calls to its functions, as often as asked;
- examine: runs the tests in an interpreter where no submission ever was. A function of the submission is a stand-in
  that sends its arguments out and gets plain data back, so the submission cannot touch what judges it. What is no plain
  data stays where it is, and the tests get a stand-in for it (`Remote`);
- both: submission and tests in one interpreter, for tests that must reach inside. Weaker: see sandbox.py.

Frames go over descriptors 0 and 1 (a letter, a length, a line feed, the content); what is printed goes to 2.
"""

from __future__ import annotations

import builtins
import os
import sys

from .sandbox_data import ITEMS, MOST, NOTED, TYPE_CHECKING, Foreign, Stand, _atom, _encode, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# --- frames -----------------------------------------------------------------------------------------------------------


SILENT = (StopIteration, StopAsyncIteration)  # inside `map`, these would end a loop of the tests early, without a word


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

# What Python's own syntax and functions ask of an object, done where the object is. The rest of what they ask would let
# the submission judge itself (`==`), or needs the object here.
ASKED: dict[str, Callable[..., Any]] = {
    "__len__": len,
    "__bool__": bool,
    "__str__": str,
    "__repr__": repr,
    "__iter__": iter,
    "__next__": lambda o: _step(o),
    "__contains__": lambda o, x: x in o,
    "__getitem__": lambda o, k: o[k],
    "__setitem__": lambda o, k, v: o.__setitem__(k, v),
    "__delitem__": lambda o, k: o.__delitem__(k),
    "__instancecheck__": lambda o, x: isinstance(x, o),
    "__setattr__": setattr,
}
NEVER = "__enter__ __exit__ __aenter__ __aexit__ __await__ __aiter__ __deepcopy__ __mro_entries__".split()
REFUSED = """
    lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul and rand or ror
    xor rxor lshift rshift neg pos abs invert int float index round hash enter exit aenter aexit await aiter reversed
    copy deepcopy delattr reduce_ex mro_entries
"""


def _step(iterator: Any) -> list:
    """Its next item in a list, or an empty list at its end."""
    try:
        return [type(iterator).__next__(iterator)]
    except StopIteration:
        return []


class Objects:
    """What the tests hold of a submission: its functions and classes by name, other values by number."""

    def __init__(self, namespace: dict[str, Any], functions: list[str]) -> None:
        self.namespace, self.functions = namespace, functions
        self.held: list[Any] = []
        self.numbers: dict[int, int] = {}  # by id, so that the same object is the same for the tests

    def refer(self, value: Any) -> bytes:
        """Its number, and `!` if its class is one that the tests know.

        A class has a capital. Else a wrong program could make `f` a class, whose objects may not be compared, and so
        never fail.
        """
        number = self.numbers.setdefault(id(value), len(self.held))
        if number == len(self.held):
            if number >= ITEMS:
                raise MemoryError("too many objects")
            self.held.append(value)
        named = any(name[:1].isupper() and type(value) is self.namespace.get(name) for name in self.functions)
        return b"%d%b" % (number, b"!" if named else b"")

    def find(self, name: bytes) -> Any:
        if name[:1].isdigit():
            return self.held[int(name.rstrip(b"!"))]
        if (text := name.decode("utf-8")) in self.namespace:
            return self.namespace[text]
        raise NameError(f"name {text!r} is not defined")


def solve() -> None:
    functions, code = decode(receive()[1])
    namespace = module("solution")
    try:
        execute(code, "solution", namespace)
    except BaseException as e:
        return send(b"x", why(e))
    send(b"r")
    objects = Objects(namespace, functions)
    while True:
        content = receive()[1]
        try:
            target, way, args, named = decode(content, objects.find)
            if way in ASKED:
                made = ASKED[way](target, *args)
            elif way is None:
                made = target(*args, **named)
            else:
                made = getattr(target, way)
                if args is None and callable(made):
                    send(b"m")
                    continue
                if args is not None:
                    made = made(*args, **named)
            # An object of a class that the tests know stays an object, even if it is a list, too.
            own = any(type(made) is namespace.get(name) for name in functions)
            parts: list[bytes] = []
            _atom(b"O", objects.refer(made), parts) if own else _encode(made, parts, objects.refer)
            sys.stdout.flush()
            send(b"v", b"".join(parts))
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


class Remote(Stand):
    """Stands for a function, a class or an object of the submission, which lives in another interpreter.

    It has the attributes, the methods, the items and the truth of what it stands for, all of them asked for there. It
    equals nothing but itself: what an object of the submission says to `==` would be no verdict. Where the tests
    compare or compute with an object of a class they know, the answer is "unsupported".
    """

    __slots__ = ()

    def __init__(self, target: bytes, *more: Any) -> None:
        if more:
            raise Foreign("the tests build a class upon one of the code")
        object.__setattr__(self, "_target", target)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._ask(None, args, named)

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__" == name[-2:] and name not in ("__name__", "__qualname__", "__dict__", "__annotations__"):
            raise AttributeError(name)  # what libraries look for, not tests
        return self._ask(name, None, {})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Remote) and other._target == self._target:
            return True
        if self._target.endswith(b"!") or (isinstance(other, Remote) and other._target.endswith(b"!")):
            raise Foreign("the tests compare objects of the code")
        return False

    def _ask(self, way: str | None, args: tuple | None, named: dict[str, Any]) -> Any:
        try:
            call = encode((self, way, args, named))
        except Foreign as e:
            raise Foreign(f"the tests give {self._target.decode()!r} {e}") from None
        send(b"q", call)
        letter, content = receive()
        if letter == b"v":
            return decode(content, Remote)
        if letter == b"m":
            return lambda *args, **named: self._ask(way, args, named)
        if letter == b"e":
            raise again(content)
        raise RuntimeError(content.decode("utf-8", "replace"))


def _asked(name: str) -> Callable[..., Any]:
    def ask(self: Remote, *args: Any) -> Any:
        made = self._ask(name, args, {})
        if name == "__next__":
            if not made:
                raise StopIteration
            return made[0]
        return made

    return ask


def _refused(name: str) -> Callable[..., Any]:
    def refuse(self: Remote, *args: Any) -> Any:
        if self._target.endswith(b"!") or name in NEVER:
            raise Foreign(f"the tests ask an object of the code for {name}")
        if name == "__hash__":
            return hash(self._target)
        raise TypeError(f"an object without {name}")

    return refuse


for _name in ASKED:
    setattr(Remote, _name, _asked(_name))
for _name in REFUSED.split():
    setattr(Remote, f"__{_name}__", _refused(f"__{_name}__"))


def examine() -> None:
    functions, tests = decode(receive()[1])
    namespace = module("tests")
    namespace.update((name, Remote(name.encode())) for name in functions)
    letter, said = b"p", b""
    try:
        execute(tests, "tests", namespace)
    except BaseException as e:
        letter, said = b"x", why(e)
    if NOTED:  # even if the tests caught it and went on
        letter, said = b"u", NOTED[-1].encode("utf-8", "replace")
    send(letter, said)


def both() -> None:
    # Held in locals: the submission may replace what modules hold.
    ask, tell, run, show, read, write, end = receive, send, execute, why, os.read, os.write, os._exit
    first, code = decode(ask()[1])
    kept = fresh(first)
    path, hooks, found, loaded = list(sys.meta_path), list(sys.path_hooks), list(sys.path), set(sys.modules)
    screen, functions, finders = sys.stdout, vars(builtins), dict(sys.path_importer_cache)
    own, collect, monitoring = dict(functions), __import__("gc"), getattr(sys, "monitoring", None)
    namespace = module("solution")
    module("__main__")  # what was there is this harness
    try:
        run(code, "solution", namespace)
    except BaseException as e:
        return tell(b"x", show(e))
    functions.clear()
    functions.update(own)
    sys.meta_path[:], sys.path_hooks[:], sys.path[:], sys.stdout = path, hooks, found, screen
    sys.path_importer_cache.clear()
    sys.path_importer_cache.update(finders)
    sys.settrace(None)
    sys.setprofile(None)
    collect.callbacks.clear()
    for tool in range(6 if monitoring else 0):
        if monitoring.get_tool(tool) is not None:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)
    for name in [n for n in namespace if n in own and not n.startswith("__")]:
        del namespace[name]  # an `abs` or `sorted` of its own would judge for it
    for name in [n for n in sys.modules if n.startswith(("unittest", "doctest")) and n not in loaded]:
        del sys.modules[name]
    sys.modules.update(kept)
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


def fresh(names: list[str]) -> dict[str, Any]:
    """These modules, imported before the submission and put out of its way: it imports them anew for itself."""
    for name in names:
        try:
            __import__(name)
        except ImportError:
            pass  # the tests will find out
    roots = {name.partition(".")[0] for name in names}
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in roots}


def main(mode: str) -> None:
    sys.stdin = open(os.devnull) if os.path.exists(os.devnull) else None
    sys.stdout = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.__stdout__ = sys.stdout  # the other one is for frames
    builtins.exit = builtins.quit = sys.exit
    send(b"h")
    {"solve": solve, "examine": examine, "both": both}[mode]()
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
