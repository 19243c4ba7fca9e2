"""math-verify in processes that may be killed: it has no bounds of its own and works in main threads only."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import threading

from .files import ROOT, UserError

SECRET = re.compile(r"(?i)key|token|secret|passw|credential")


class Checker:
    """math-verify behind hard limits: as many processes as there are callers at once, kept for the next call.

    seconds: CPU time of one check, so that a busy machine changes no verdict; four times as much on the clock (and on
    the clock only, on Windows). megabytes: memory, on Linux.
    """

    def __init__(self, seconds: float = 5.0, megabytes: int = 2048) -> None:
        self.seconds, self.megabytes = seconds, megabytes
        self.idle: list[subprocess.Popen[str]] = []
        self.lock = threading.Lock()

    def equal(self, gold: str, answer: str) -> bool | None:
        """math-verify's verdict; None if it cannot read the gold answer, took too long or died.

        Raises: UserError if it is not installed or cannot be started.
        """
        return self.timed(gold, answer, self.seconds)[0]

    def timed(self, gold: str, answer: str, seconds: float) -> tuple[bool | None, float]:
        """The verdict of `equal` within so many seconds of CPU time, and how many were spent: all, if it died."""
        seconds = min(seconds, self.seconds)
        with self.lock:
            process = self.idle.pop() if self.idle else None
        if process is None or process.poll() is not None:
            process = self._start()
        try:
            reply = _exchange(process, json.dumps([gold, answer, seconds]), 4 * seconds)
        except BaseException:  # Ctrl-C: nobody shall read its late reply
            _end(process)
            raise
        if not reply.endswith("\n"):  # it died, perhaps in the middle of a word
            _end(process)
            return None, seconds
        with self.lock:
            self.idle.append(process)
        verdict, spent = json.loads(reply)
        return verdict, spent

    def _start(self) -> subprocess.Popen[str]:
        env = {k: v for k, v in os.environ.items() if not SECRET.search(k)}
        path = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [sys.executable, "-m", "trinity_mini.math_checker", str(self.seconds), str(self.megabytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env=env | {"PYTHONPATH": path, "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"},
        )
        ready = _exchange(process, "", 120)  # a first import on a busy machine
        if ready.strip() != "ready":
            _end(process)
            missing = ready.strip() == "missing"
            raise UserError(
                "math-verify is not installed: run `pip install -e .[llm]`."
                if missing
                else "math-verify cannot be started: is the machine out of memory? Close something and try again."
            )
        return process

    def close(self) -> None:
        with self.lock:
            processes, self.idle = self.idle, []
        for process in processes:
            _end(process)


def _exchange(process: subprocess.Popen[str], line: str, seconds: float) -> str:
    """Send a line, if there is one, and read one; "" if that takes longer than so many seconds, or the process dies."""
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        if line:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return process.stdout.readline()
    except (OSError, ValueError):
        return ""
    finally:
        timer.cancel()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            stream.close()  # type: ignore[union-attr]
    process.wait()


CHECKER = Checker()
atexit.register(CHECKER.close)


def _serve(seconds: float, megabytes: int) -> None:
    """The process: reads [gold, answer, seconds] a line, writes [true, false or null, seconds of CPU time] a line."""
    import faulthandler
    import signal
    import time

    out, sys.stdout = sys.stdout, sys.stderr  # a library that prints must not be read as a verdict
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
    try:
        from math_verify import LatexExtractionConfig, parse, verify
    except ImportError:
        print("missing", file=out, flush=True)
        return

    def read(text: str) -> list:
        return parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=None)  # type: ignore[arg-type]

    def limit(cpu: float) -> None:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, cpu)  # its signal ends the process

    verify(read("x"), read("\\frac{1}{2}"), timeout_seconds=None)  # what is built at first use, before any clock runs
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(4 * seconds + 1, exit=True)  # even if nobody is left to kill it
        start = time.process_time()
        verdict: bool | None
        try:
            *texts, most = json.loads(line)
            limit(min(most, seconds))
            gold, answer = map(read, texts)
            if not any(not isinstance(g, str) for g in gold):
                verdict = None
            else:
                verdict = verify(gold, answer, allow_set_relation_comp=True, timeout_seconds=None)
        except Exception:
            verdict = None
        limit(0)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps([verdict, time.process_time() - start]), file=out, flush=True)


if __name__ == "__main__":
    _serve(float(sys.argv[1]), int(sys.argv[2]))
