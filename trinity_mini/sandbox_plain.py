"""The plain Python process.

NO security boundary: it can read and write what this user can, and reach whatever runs as this user. That is the
process of the tests, too: a submission may write its own verdict there, and leave processes behind. Only its time,
output, environment and (not on macOS and Windows) memory are limited. Take it by explicit choice, for code you would
run yourself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

from .sandbox import Limits

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
