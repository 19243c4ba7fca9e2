"""What runs inside the kernel of a handed-in notebook: limits before it starts, and the two requests of the grader.

`python -m trinity_mini.grade_kernel MEGABYTES -f CONNECTION` is a Jupyter kernel with little memory. The grader
(grade_run.py) sends ordinary cells as they are. Checker cells come as a request of its own, so that nothing a notebook
may do to IPython (its way of running cells, transformers, hooks, formatters) has to do with them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any

from ipykernel.iostream import IOPubThread, OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp

import trinity_mini
from trinity_mini.grade_guard import Guard, named, short, text


def limit(megabytes: int) -> None:
    """Limit this process' memory and files: by setrlimit, on macOS (which ignores it) by a watch; not on Windows."""
    try:
        import resource
    except ImportError:
        return
    size = megabytes * 2**20
    limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": 2**30}
    if sys.platform == "linux":
        limits["RLIMIT_DATA"] = size  # RLIMIT_AS would count what torch maps and never touches
    elif sys.platform != "darwin":
        limits["RLIMIT_AS"] = size
    for name, value in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # not here, or a lower limit stands already
            resource.setrlimit(getattr(resource, name), (value, value))
    if sys.platform == "darwin":

        def watch() -> None:
            while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < size:
                time.sleep(0.5)
            os._exit(137)

        threading.Thread(target=watch, daemon=True).start()


class GradingKernel(IPythonKernel):
    """A kernel of Python that also answers guard_request and check_request, and keeps its replies short."""

    msg_types = [*IPythonKernel.msg_types, "guard_request", "check_request"]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shell._tee = lambda *args, **kwargs: contextlib.nullcontext()  # IPython keeps what a cell has printed

    async def do_execute(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            reply = await super().do_execute(*args, **kwargs)
            return {"execution_count": 0, "user_expressions": {}, **short(reply)}
        except BaseException as e:  # ipykernel does not expect an exception whose text fails
            return {"status": "error", "ename": named(e), "evalue": text(e), "payload": []}

    def guard_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Note how the modules are that checkers rely on. Content: watched."""
        reply = {"status": "ok"}
        try:
            self._guard = Guard(parent["content"]["watched"])
            sys.addaudithook(self._guard.hear)
        except Exception as e:
            reply = {"status": "error", "ename": named(e), "evalue": text(e)}
        self.session.send(stream, "guard_reply", reply, parent, ident=ident)

    def check_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Run a checker cell. Content: source, imports; replied is what `Guard.check` found."""
        asked = parent["content"]
        found = self._guard.check(self.shell.user_ns, asked["source"], asked["imports"])
        exits = [{"source": "ask_exit"}] if self.shell.exit_now else []  # a learner's `exit()`: it is about to stop
        reply = {"status": "ok", "found": found, "payload": exits}
        self.session.send(stream, "check_reply", reply, parent, ident=ident)


def silence() -> None:
    """Drop what a notebook prints and shows: nobody reads it, and a flood would fill the memory before it is sent."""

    def write(_: OutStream, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text)}")
        return len(text)

    OutStream.write = write
    OutStream.flush = IOPubThread.send_multipart = lambda *args, **kwargs: None


def main() -> None:
    limit(int(sys.argv.pop(1)))
    silence()
    # Whoever imports these gets a copy of his own, and cannot change the guard's.
    del sys.modules["trinity_mini.grade_guard"], trinity_mini.grade_guard
    IPKernelApp.launch_instance(kernel_class=GradingKernel)


if __name__ == "__main__":
    main()
