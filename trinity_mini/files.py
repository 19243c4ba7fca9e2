"""Files that are never half written, and the one error a user should see."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import sys
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"


class UserError(Exception):
    """Something the user can mend: one sentence that names the remedy (exit code 2 in the CLI)."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part; threads may do so at once.

    Its permissions stay, and a link keeps pointing where it did: its target is written. What is no file of its own, a
    device, a pipe or an open file such as /dev/stdout, is written to as it is, behind what it holds.
    Raises: UserError if the disk is full or the folder cannot be written.
    """
    path = Path(path)
    temporary = None
    try:
        if (stream := open_stream(path)) is not None:
            with stream:
                stream.write(content)
            return
        path = Path(os.path.realpath(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")  # short: the file's own name may be as long as any
        with open(temporary, "xb") as f:
            with contextlib.suppress(OSError):  # no old file, or a file system without permissions
                if os.name == "posix":
                    os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as e:
        raise UserError(
            f"cannot write {path} ({e.strerror or e}): free some space or choose another folder; nothing was changed."
        ) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # nothing to remove, or a folder that is none
                temporary.unlink()


def open_stream(path: Path) -> BinaryIO | None:
    """What is not to be replaced when a path is written: a device, a pipe, a descriptor of a process; None for a file.

    /dev/stdout may well lead to an ordinary file, the log of a shell: others write there, too, so neither may that be
    replaced, nor its beginning be written over. Raises: OSError if it cannot be opened.
    """
    for _ in range(40):  # links, as many as Linux follows
        path = Path(os.path.realpath(path.parent), path.name)
        if str(path.parent) in ("/dev/fd", f"/proc/{os.getpid()}/fd") and path.name.isdecimal():
            for own in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, OSError, ValueError):  # closed: then nothing waits in it
                    own.flush()
            return os.fdopen(os.dup(int(path.name)), "wb")  # not opened anew: that would begin where the file began
        if path.parts[:2] == ("/", "proc") or not path.is_symlink():
            break
        path = path.parent / os.readlink(path)
    system = path.parts[:2] in (("/", "proc"), ("/", "dev")) and path.parts[2:3] != ("shm",)
    with contextlib.suppress(OSError):  # not there
        mode = path.stat().st_mode
        system = system and not stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISBLK(mode)
    return open(path, "ab") if system else None


def sweep(folder: Path) -> None:
    """Remove what killed processes left of the files they were writing in a folder; none may be writing there now."""
    for file in Path(folder).glob(".*.tmp"):
        if re.fullmatch(r"\.([0-9a-f]{16}|.+\.\d+)\.tmp", file.name):  # the latter by older versions of this course
            with contextlib.suppress(OSError):
                file.unlink()
