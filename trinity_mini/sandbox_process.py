"""Guests: processes that run code nobody trusts, watched and killed from here."""

from __future__ import annotations

import codecs
import contextlib
import os
import queue
import secrets
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from . import sandbox_data, sandbox_guest
from .sandbox import Limits, Result
from .sandbox_data import MOST, encode
from .sandbox_lacks import lacking
from .sandbox_wasi import fate

GUEST = Path(sandbox_data.__file__).read_text(encoding="utf-8") + "\nimport builtins, os, sys\n"
GUEST += "#" + Path(sandbox_guest.__file__).read_text(encoding="utf-8").partition("# --- frames")[2]
TRAPPED = "unsupported: the interpreter died"
START = 60.0  # seconds that a guest may take to appear on a busy machine; its own time begins after that

Launch = Callable[[Path, str, "str | None", Limits, int], subprocess.Popen]  # folder, source, mode, limits, stdin


class Watch:
    """The limits of one run, over all its guests."""

    def __init__(self, limits: Limits, kind: str) -> None:
        self.limits, self.kind = limits, kind
        self.broken = ""  # which limit was met
        self.shown: list[str] = []
        self.length = 0
        self.guests: list[Guest] = []
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.timer = threading.Timer(START, self.breach, ["unsupported: the sandbox did not start"])
        self.timer.daemon = True
        self.timer.start()

    def go(self) -> None:
        """All guests are there: from now on their time counts."""
        self.timer.cancel()
        self.began = time.monotonic()
        self.timer = threading.Timer(self.limits.seconds, self.breach, ["timed out"])
        self.timer.daemon = True
        self.timer.start()

    def breach(self, why: str) -> None:
        self.broken = self.broken or why
        for guest in self.guests:
            guest.gone = True
            guest.kill()

    def show(self, text: str) -> None:
        with self.lock:
            self.length += len(text)
            room = self.limits.output - self.length + len(text)
            if room > 0:
                self.shown.append(text[:room])
        if self.length > self.limits.output:
            self.breach("too much output")

    def end(self) -> None:
        self.timer.cancel()
        for guest in self.guests:
            guest.close()

    def result(self, why: str) -> Result:
        seconds = time.monotonic() - self.began
        self.end()
        why = self.broken or why
        if why.startswith("failed: MemoryError"):
            why = "out of memory"
        return Result(why in ("passed", "finished"), self.kind, why, "".join(self.shown), seconds)


class Guest:
    """One process with a guest in it. In tests it speaks frames on its standard output and prints on the other.

    Only threads of their own touch its pipes: a process that got away from a plain guest may hold them for ever.
    """

    def __init__(self, process: subprocess.Popen, watch: Watch, framed: bool, home: Path) -> None:
        self.process, self.watch, self.home = process, watch, home
        self.printed: IO[bytes] = process.stderr if framed else process.stdout
        self.gone = self.closed = False
        self.errors = bytearray()
        self.frames: queue.Queue[tuple[bytes, bytes]] = queue.Queue(1)  # what nobody awaits stays in the pipe
        self.outbox: queue.Queue[bytes | None] = queue.Queue(4)
        watch.guests.append(self)
        tasks = (
            [self._write, self._read_frames, self._read_printed] if framed else [self._read_errors, self._read_printed]
        )
        self.threads = [threading.Thread(target=task, daemon=True) for task in tasks]
        for thread in self.threads:
            thread.start()

    def _read_printed(self) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for data in self._chunks(self.printed):
            self.watch.show(decode(data))

    def _read_errors(self) -> None:
        for data in self._chunks(self.process.stderr):
            self.errors += data
            if len(self.errors) > 1 << 20:
                self.watch.breach("too much output")

    def _chunks(self, pipe: IO[bytes]) -> Iterator[bytes]:
        with contextlib.suppress(OSError, ValueError):  # closed under our hands
            while not self.gone and (data := os.read(pipe.fileno(), 1 << 16)):
                yield data

    def _read_frames(self) -> None:
        frame = b"r", b""
        while frame[0] and not self.gone:
            frame = self._frame()
            while not self.gone:
                with contextlib.suppress(queue.Full):
                    self.frames.put(frame, timeout=0.2)
                    break

    def _frame(self) -> tuple[bytes, bytes]:
        with contextlib.suppress(OSError, ValueError):
            head = self.process.stdout.readline(16)
            length = int(head[1:])
            if head.endswith(b"\n") and 0 <= length <= MOST:
                content = self.process.stdout.read(length)
                if len(content) == length:
                    return head[:1], content
        return b"", b""

    def receive(self) -> tuple[bytes, bytes]:
        """Its next frame; the letter is empty if it is gone or speaks nonsense."""
        while not self.gone:
            ended = self.process.poll() is not None  # asked first: what it said before it ended still counts
            with contextlib.suppress(queue.Empty):
                return self.frames.get(timeout=0.2)
            if ended:
                break
        return b"", b""

    def trapped(self) -> bool:
        """Whether its machine failed it; it is waited for, since it may not have said so yet."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        return self.fate() == "trap"

    def fate(self) -> str:
        """See sandbox_wasi.py; a plain process could write what it likes there."""
        return fate(self.home) if self.watch.kind == "wasi" else ""

    def send(self, letter: bytes, content: bytes = b"") -> None:
        while not self.gone:
            with contextlib.suppress(queue.Full):
                return self.outbox.put(b"%b%d\n%b" % (letter, len(content), content), timeout=0.2)

    def _write(self) -> None:
        while (data := self.outbox.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # it is gone: receiving will say so
                self.process.stdin.write(data)
                self.process.stdin.flush()

    def kill(self) -> None:
        """End it, with all it started and that did not run away."""
        if self.closed:
            return
        with contextlib.suppress(OSError):
            if os.name == "posix":
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                subprocess.run(["taskkill", "/F", "/T", "/PID", str(self.process.pid)], capture_output=True)
        with contextlib.suppress(OSError):
            self.process.kill()

    def close(self) -> None:
        if self.closed:
            return
        self.kill()
        self.closed = True  # its number may be another process's soon
        self.process.wait()
        self.threads[-1].join(1.0)  # what it printed last
        self.gone = True
        with contextlib.suppress(queue.Full):
            self.outbox.put_nowait(None)
        for thread in self.threads:
            thread.join(0.3)
        if not any(thread.is_alive() for thread in self.threads):
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                with contextlib.suppress(OSError, AttributeError):  # its stdin may be no pipe
                    pipe.close()


def run_tests(launch: Launch, kind: str, code: str, tests: str, functions: Sequence[str], limits: Limits) -> Result:
    """The submission in one guest and the tests in another; both in one where no functions are named."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        watch = Watch(limits, kind)
        try:
            modes = ["solve", "examine"] if functions else ["both"]
            guests = []
            for mode in modes:
                (home := Path(folder, mode)).mkdir()
                guests.append(Guest(launch(home, GUEST, mode, limits, subprocess.PIPE), watch, True, home))
            if any(guest.receive()[0] != b"h" for guest in guests):
                return watch.result("unsupported: the sandbox did not start")
            watch.go()
            return watch.result(_converse(guests, code, tests, functions))
        finally:
            watch.end()


def _converse(guests: list[Guest], code: str, tests: str, functions: Sequence[str]) -> str:
    solver = guests[0]
    text, judges = tests.encode("utf-8", "surrogatepass"), []
    if not functions:
        judges = [name for name in ("unittest", "unittest.mock", "doctest") if name.rpartition(".")[2] in tests]
    solver.send(b"c", encode((list(functions) or judges, code.encode("utf-8", "surrogatepass"))))
    letter, content = solver.receive()
    if letter != b"r":
        return _failed(solver, letter, content, "the code ended its interpreter", (code, tests))
    if not functions:
        secret = secrets.token_bytes(32)  # no guest knew it while the submission ran
        solver.send(b"t", secret + text)
        letter, content = solver.receive()
        if (letter, content) == (b"p", secret):
            return "passed"
        return _failed(solver, letter, content, "the interpreter ended before the tests did", (code, tests))
    examiner = guests[1]
    examiner.send(b"t", encode((list(functions), text)))
    while True:
        letter, content = examiner.receive()
        if letter == b"p":
            return "passed"
        if letter != b"q":
            return _failed(examiner, letter, content, "the tests ended their interpreter", (code, tests))
        solver.send(b"q", content)
        letter, content = solver.receive()
        if letter not in (b"v", b"e", b"m"):
            return _failed(solver, letter, content, "the code ended its interpreter", (code, tests))
        examiner.send(letter, content)


def _failed(guest: Guest, letter: bytes, content: bytes, otherwise: str, sources: Sequence[str]) -> str:
    if letter == b"" and guest.trapped():
        return TRAPPED
    text = content.decode("utf-8", "replace") if letter in (b"x", b"u") else otherwise
    if letter == b"u":
        return f"unsupported: {text}"
    if lacking(text, *sources):
        return f"unsupported: {text}"
    return "too much output" if text == "too much output" else f"failed: {text}"


RUNNER = """
import builtins, sys
builtins.exit = builtins.quit = sys.exit
sys.setrecursionlimit(max(sys.getrecursionlimit(), 3000))
def at_once(run, arguments, named={}):
    run(*arguments, **named)
    lock = getattr(getattr(run, "__self__", None), "_tstate_lock", None)
    if lock is not None and lock.locked():
        lock.release()
    return 1
if sys.platform == "wasi":  # it has no threads, and programs start one for its larger stack
    import _thread
    _thread.start_new_thread = at_once
code = sys.argv.pop()
del sys.argv[1:]
exec(compile(code, "main.py", "exec", dont_inherit=True), {"__name__": "__main__", "__builtins__": builtins})
"""


def run_whole(launch: Launch, kind: str, code: str, stdin: str, limits: Limits, caller: str) -> Result:
    """A whole program, with `stdin` as its standard input."""
    if "\0" in code:  # arguments of a process end there
        return Result(False, kind, "failed: SyntaxError: source code string cannot contain null bytes", "", 0.0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given, home = Path(folder, "stdin"), Path(folder, "home")
        home.mkdir()
        given.write_bytes(stdin.encode("utf-8", "replace"))
        program = f"CODE = {code!r}\n{caller}" if caller else code
        watch = Watch(limits, kind)
        try:
            with open(given, "rb") as f:
                guest = Guest(launch(home, program, None, limits, f.fileno()), watch, False, home)
            watch.go()
            end = guest.process.wait()
            watch.timer.cancel()
            guest.kill()  # what it started holds its pipes open
            for thread in guest.threads:
                thread.join(1.0)
            last = guest.errors.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
            why = "finished" if end == 0 else f"failed: {last or f'exit code {end}'}"
            if how := guest.fate():
                died = "failed: the interpreter gave up"
                why = {"late": "timed out", "trap": TRAPPED}.get(how, f"failed: {last}" if last else died)
            elif end != 0 and lacking(last, code):
                why = f"unsupported: {last}"
            return watch.result(why)
        finally:
            watch.end()
