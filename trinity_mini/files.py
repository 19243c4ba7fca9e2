"""Files that are never half written, and the one error a user should see."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"


class UserError(Exception):
    """Something the user can mend: one sentence that names the remedy (exit code 2 in the CLI)."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part.

    A link keeps pointing where it did, and its target is written; a device or pipe is written to as it is.
    Raises: UserError if the disk is full or the folder cannot be written.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(content)
            return
        with open(temporary, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as e:
        raise UserError(
            f"cannot write {path} ({e.strerror or e}): free some space or choose another folder; nothing was changed."
        ) from None
    finally:
        with contextlib.suppress(OSError):  # nothing to remove, or a folder that is none
            temporary.unlink()
