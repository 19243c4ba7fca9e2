"""Run the cells of a handed-in notebook in a kernel that may loop, die or be flooded, and say what became of each."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client import BlockingKernelClient, KernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from .files import ROOT, UserError
from .grade_guard import MOST

TIME, DIED, NOT_RUN = "TimeUp", "KernelDied", "NotRun"  # what an outcome says instead of an exception's name
SECRET = re.compile(r"(?i)key|token|secret|passw|credential")
LARGEST = 2**20  # bytes of a message: a kernel that sends more is not listened to


@dataclass(frozen=True)
class Limits:
    """What a handed-in notebook may use; seconds, and MiB of memory for its kernel."""

    cell: float = 120
    notebook: float = 900
    megabytes: int = 4096
    grace: float = 5  # seconds that a kernel has to answer an interrupt
    start: float = 120
    restarts: int = 8  # of the kernel, in one notebook


@dataclass(frozen=True)
class Step:
    """A code cell to run. A checker cell has points, the imports that it relies on, and lines with hidden tests."""

    source: str
    name: str = ""
    points: int = 0
    imports: tuple[str, ...] = ()
    hidden: tuple[int, ...] = ()


@dataclass
class Outcome:
    """How a step ended: done only if it ran to its end; if not, ename is an exception's name, TIME, DIED or NOT_RUN.

    evalue: the exception's text; for TIME the seconds that it had.
    """

    done: bool = False
    ename: str = NOT_RUN
    evalue: str = ""
    line: int = 0
    overwritten: list[str] = field(default_factory=list)


class KernelLost(Exception):
    """The kernel is dead, or does not answer an interrupt; the text is TIME or DIED."""


class NotStarted(UserError):
    """No kernel can be started."""


class Kernel:
    """A fresh kernel with limits, in an empty folder of its own, without keys and tokens in its environment.

    Outputs are not even received, so that a flood of them harms nobody.
    """

    def __init__(self, limits: Limits, watched: Sequence[str] = ()) -> None:
        """Start it and note how the watched modules are. Raises: UserError if no kernel can be started."""
        self.limits = limits
        self._folder = tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        (folder / "work").mkdir()
        specs = _Specs()
        specs.megabytes = limits.megabytes
        self._manager = KernelManager(kernel_spec_manager=specs, connection_file=str(folder / "kernel.json"))
        self._client: BlockingKernelClient | None = None
        try:
            self._manager.start_kernel(
                cwd=str(folder / "work"), env=_environment(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            self._client = self._manager.client()
            self._client.context.maxmsgsize = LARGEST  # an option of the sockets that it will make
            self._client.start_channels(shell=True, iopub=False, stdin=False, hb=False, control=False)
            reply = self._asked(self._sent("guard_request", {"watched": list(watched)}), limits.start)
            if reply["status"] != "ok":
                raise KernelLost(reply.get("evalue") or TIME)
        except (KernelLost, OSError, RuntimeError) as e:
            self.close()
            remedy = "is the machine busy? Try again" if str(e) == TIME else "try again, or give it more --memory"
            raise NotStarted(f"no kernel can be started ({e}): {remedy}.") from None
        except BaseException:
            self.close()
            raise

    def ask(self, code: str, seconds: float) -> dict[str, Any]:
        """Execute code; the content of the kernel's reply, with status "time" if it had to be interrupted.

        Raises: KernelLost.
        """
        assert self._client is not None
        return self._asked(
            self._client.execute(code, store_history=False, allow_stdin=False, stop_on_error=False), seconds
        )

    def check(self, source: str, imports: Sequence[str], seconds: float) -> dict[str, Any]:
        """Run a checker cell; as `ask`, with `found`, what the guard says (grade_guard.py). Raises: KernelLost."""
        return self._asked(self._sent("check_request", {"source": source, "imports": list(imports)}), seconds)

    def _sent(self, kind: str, content: dict[str, Any]) -> str:
        """Send a request of ours; the id by which its reply is known, which no cell before it can guess."""
        assert self._client is not None
        message = self._client.session.msg(kind, content)
        self._client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def _asked(self, message: str, seconds: float) -> dict[str, Any]:
        if reply := self._reply(message, seconds):
            return reply
        with contextlib.suppress(OSError):
            self._manager.interrupt_kernel()
        if reply := self._reply(message, self.limits.grace):
            return reply | {"status": "time"}
        raise KernelLost(TIME)

    def _reply(self, message: str, seconds: float) -> dict[str, Any] | None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                reply = self._client.get_shell_msg(timeout=min(left, 0.5))
            except Empty:
                if not self._manager.is_alive():
                    raise KernelLost(DIED) from None
                continue
            except Exception:  # whatever it sent is no message: somebody has been at the kernel
                raise KernelLost(DIED) from None
            if reply["parent_header"].get("msg_id") == message:
                return _told(reply["content"])
        return None

    def close(self) -> None:
        """Kill the kernel and what it started (as far as that stayed in its process group)."""
        if self._client is not None:
            self._client.stop_channels()
        group = getattr(self._manager.provisioner, "pgid", None)
        with contextlib.suppress(Exception):  # it may be dead already
            self._manager.shutdown_kernel(now=True)
        if group and hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        self._folder.cleanup()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Specs(KernelSpecManager):
    """Knows one kernel, the interpreter's own behind our limits, whatever is installed elsewhere."""

    megabytes: int = 0

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "trinity_mini.grade_kernel", str(self.megabytes), "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="grading", language="python")


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    quiet = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    plain = {k: v for k, v in os.environ.items() if not SECRET.search(k) and k != "MPLBACKEND"}
    return plain | quiet | {"PYTHONPATH": path, "IPYTHONDIR": str(folder / "ipython"), "PYTHONUTF8": "1"}


# ---- a whole notebook --------------------------------------------------------------------------------


def run(steps: Sequence[Step], limits: Limits, watched: Sequence[str] = ()) -> list[Outcome]:
    """Run steps in order, each whatever became of the others.

    A step that is too slow is interrupted. If the kernel is lost, a fresh one runs the steps so far again, without the
    one that lost it and without the checker cells, which have their outcome.
    Raises: UserError if no kernel can be started.
    """
    return list(_Run(steps, limits, watched).outcomes())


class _Run:
    def __init__(self, steps: Sequence[Step], limits: Limits, watched: Sequence[str]) -> None:
        self.steps, self.limits, self.watched = steps, limits, watched
        self.bad: set[int] = set()  # steps that took a kernel or too much time
        self.restarts = 0
        self.end = float("inf")  # until the first kernel has started
        self.kernel: Kernel | None = None

    def outcomes(self) -> Iterator[Outcome]:
        try:
            for i in range(len(self.steps)):
                yield self.outcome(i)
        finally:
            if self.kernel:
                self.kernel.close()

    def outcome(self, i: int) -> Outcome:
        seconds = 0.0
        try:
            while self.kernel is None and self.seconds() and self.restarts <= self.limits.restarts:
                self.begin(i)
            seconds = self.seconds()
            return self.play(i, seconds) if seconds and self.kernel else Outcome()
        except KernelLost as e:
            self.lose(i)
            return Outcome(False, str(e), f"{seconds:.3g}")

    def begin(self, i: int) -> None:
        """A fresh kernel that has run the steps before i."""
        self.kernel = Kernel(self.limits, self.watched)
        self.end = min(self.end, time.monotonic() + self.limits.notebook)
        for k in range(i):
            if k in self.bad or self.steps[k].points or not self.seconds():
                continue
            try:
                self.play(k, self.seconds())
            except KernelLost:
                return self.lose(k)

    def lose(self, i: int) -> None:
        self.bad.add(i)
        self.restarts += 1
        if self.kernel:
            self.kernel.close()
        self.kernel = None

    def seconds(self) -> float:
        """What the next step may take: 0 when the time of the notebook is up."""
        return max(0.0, min(self.limits.cell, self.end - time.monotonic()))

    def play(self, i: int, seconds: float) -> Outcome:
        """Run one step in the kernel. Raises: KernelLost."""
        assert self.kernel is not None
        step = self.steps[i]
        if step.points:
            reply = self.kernel.check(step.source, step.imports, seconds)
        else:
            reply = self.kernel.ask(step.source, seconds)
        if "ask_exit" in reply["sources"]:
            raise KernelLost(DIED)
        if reply["status"] == "time":
            self.bad.add(i)
            return Outcome(False, TIME, f"{seconds:.3g}")
        if step.points:
            return _checked(reply)
        if reply["status"] != "ok":
            return Outcome(False, str(reply.get("ename") or "Error"), str(reply.get("evalue", ""))[:MOST])
        return Outcome(True, "")


def _told(content: Any) -> dict[str, Any]:
    """A reply's content with `sources`, of its payload. Raises: KernelLost if it is none, for a kernel may send all."""
    try:
        sources = [p["source"] for p in content.get("payload", ())]
        return {**content, "status": str(content["status"]), "sources": sources}
    except (TypeError, KeyError, AttributeError):
        raise KernelLost(DIED) from None


def _checked(reply: dict[str, Any]) -> Outcome:
    """The outcome of a checker cell; without the guard's own words, it did not run to its end."""
    try:
        found = reply["found"]
        names = [str(name)[:MOST] for name in found["overwritten"]]
        ename = "" if found["done"] is True else str(found["ename"])[:MOST] or "Error"
        return Outcome(not ename, ename, str(found["evalue"])[:MOST], int(found["line"]), names)
    except (KeyError, TypeError, ValueError, OverflowError):
        pass  # somebody has been at the guard
    return Outcome(False, "Error", "the checker cell did not run to its end", 0, ["the guard of the grader"])
