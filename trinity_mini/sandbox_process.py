"""Guests: processes that run code nobody trusts, watched and killed from here; and the plain Python process.

A plain process is NO security boundary: it can read and write what this user can. Only its time, output, environment
and (not on macOS and Windows) memory are limited. Take it by explicit choice, for code you would run yourself.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from . import sandbox_guest
from .sandbox import Limits, Result
from .sandbox_wasi import LATE, TRAP

GUEST = Path(sandbox_guest.__file__).read_text(encoding="utf-8")
START = 60.0  # seconds that a guest may take to appear on a busy machine; its own time begins after that

Launch = Callable[[Path, str, "str | None", Limits, int], subprocess.Popen]  # folder, source, mode, limits, stdin


class Watch:
    """The limits of one run, over all its guests."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.broken = ""  # which limit was met
        self.shown: list[str] = []
        self.length = 0
        self.guests: list[Guest] = []
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.timer = threading.Timer(START, self.breach, ["timed out: the sandbox did not start"])
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

    def result(self, kind: str, why: str) -> Result:
        seconds = time.monotonic() - self.began
        self.end()
        why = self.broken or why
        if why.startswith("failed: MemoryError"):
            why = "out of memory"
        return Result(why in ("passed", "finished"), kind, why, "".join(self.shown), seconds)


class Guest:
    """One process with a guest in it. In tests it speaks frames on its standard output and prints on the other.

    Only threads of their own touch its pipes: a process that got away from a plain guest may hold them for ever.
    """

    def __init__(self, process: subprocess.Popen, watch: Watch, framed: bool) -> None:
        self.process, self.watch = process, watch
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
            if head.endswith(b"\n") and 0 <= length <= sandbox_guest.MOST:
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
        watch = Watch(limits)
        try:
            modes = ["solve", "examine"] if functions else ["both"]
            guests = []
            for mode in modes:
                (home := Path(folder, mode)).mkdir()
                guests.append(Guest(launch(home, GUEST, mode, limits, subprocess.PIPE), watch, framed=True))
            if any(guest.receive()[0] != b"h" for guest in guests):
                return watch.result(kind, "failed: the sandbox did not start")
            watch.go()
            return watch.result(kind, _converse(guests, code, tests, functions))
        finally:
            watch.end()


def _converse(guests: list[Guest], code: str, tests: str, functions: Sequence[str]) -> str:
    solver = guests[0]
    solver.send(b"c", code.encode("utf-8", "surrogatepass"))
    letter, content = solver.receive()
    if letter != b"r":
        return _failed(letter, content, "the code ended its interpreter")
    text = tests.encode("utf-8", "surrogatepass")
    if not functions:
        secret = secrets.token_bytes(32)  # no guest knew it while the submission ran
        solver.send(b"t", secret + text)
        letter, content = solver.receive()
        if (letter, content) == (b"p", secret):
            return "passed"
        return _failed(letter, content, "the interpreter ended before the tests did")
    examiner = guests[1]
    examiner.send(b"t", sandbox_guest.encode((list(functions), text)))
    while True:
        letter, content = examiner.receive()
        if letter == b"p":
            return "passed"
        if letter != b"q":
            return _failed(letter, content, "the tests ended their interpreter")
        solver.send(b"q", content)
        letter, content = solver.receive()
        if letter not in (b"v", b"e", b"o"):
            return _failed(letter, content, "the code ended its interpreter")
        examiner.send(letter, content)


def _failed(letter: bytes, content: bytes, otherwise: str) -> str:
    text = content.decode("utf-8", "replace") if letter in (b"x", b"u") else otherwise
    if letter == b"u":
        return "unsupported: " + text.partition(": ")[2]
    if lacking(text):
        return f"unsupported: {text}"
    return "too much output" if text == "too much output" else f"failed: {text}"


# Modules that programs rightly use and a bare interpreter has not. Another missing module is the code's own fault.
KNOWN = set(
    "numpy scipy pandas sklearn matplotlib seaborn sympy networkx sortedcontainers requests bs4 yaml nltk torch PIL "
    "cv2 statsmodels dateutil pytz psutil regex".split()
)


def lacking(error: str) -> bool:
    """Whether an error says that this interpreter lacks a module that others have."""
    if not error.startswith("ModuleNotFoundError: No module named '"):
        return False
    root = error.split("'")[1].partition(".")[0]
    return root in KNOWN or root in sys.stdlib_module_names


RUNNER = """
import builtins, sys
builtins.exit = builtins.quit = sys.exit
sys.setrecursionlimit(max(sys.getrecursionlimit(), 3000))
code = sys.argv.pop()
del sys.argv[1:]
exec(compile(code, "main.py", "exec", dont_inherit=True), {"__name__": "__main__", "__builtins__": builtins})
"""


def run_whole(launch: Launch, kind: str, code: str, stdin: str, limits: Limits) -> Result:
    """A whole program, with `stdin` as its standard input."""
    if "\0" in code:  # arguments of a process end there
        return Result(False, kind, "failed: SyntaxError: source code string cannot contain null bytes", "", 0.0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        given, home = Path(folder, "stdin"), Path(folder, "home")
        home.mkdir()
        given.write_bytes(stdin.encode("utf-8", "replace"))
        watch = Watch(limits)
        try:
            with open(given, "rb") as f:
                guest = Guest(launch(home, code, None, limits, f.fileno()), watch, framed=False)
            watch.go()
            end = guest.process.wait()
            watch.timer.cancel()
            guest.kill()  # what it started holds its pipes open
            for thread in guest.threads:
                thread.join(1.0)
            last = guest.errors.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
            why = "finished" if end == 0 else f"failed: {last or f'exit code {end}'}"
            if end in (LATE, TRAP):
                why = "timed out" if end == LATE else "failed: the interpreter died"
            elif end != 0 and lacking(last):
                why = f"unsupported: {last}"
            return watch.result(kind, why)
        finally:
            watch.end()


# --- the plain process ------------------------------------------------------------------------------------------------

LIMIT = """
def _limit(seconds, megabytes):
    try:
        import resource
    except ImportError:
        return
    for what, most in (
        ("RLIMIT_AS", megabytes << 20), ("RLIMIT_CPU", seconds), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 64 << 20)
    ):
        try:
            resource.setrlimit(getattr(resource, what), (most, most))
        except (AttributeError, ValueError, OSError):
            pass
_limit({seconds}, {megabytes})
del _limit
"""


def environment() -> dict[str, str]:
    """What a Python needs to start, and nothing of the user's. Never None for Popen: the child would read the list of
    variables while another thread may be changing it, and fail to start."""
    names = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")
    return {name: value for name in names if (value := os.environ.get(name)) is not None}


def launch_plain(folder: Path, source: str, mode: str | None, limits: Limits, stdin: int) -> subprocess.Popen:
    """A Python of this environment, started in an empty folder with an environment of its own."""
    warnings.warn("a plain process is no security boundary: the code can do what you can.", stacklevel=5)
    start = LIMIT.format(seconds=int(limits.seconds) + 2, megabytes=limits.memory_mb + 256)
    script = folder / ".guest.py"
    script.write_text(source, encoding="utf-8", errors="surrogatepass")
    start += "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    own = {"HOME": str(folder), "TEMP": str(folder), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-I", "-X", "utf8", "-c", start, str(script), *([mode] if mode else [])],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment() | own,
        start_new_session=os.name == "posix",
    )
