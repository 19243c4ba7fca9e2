"""A file is never half written, and what went wrong is said with its remedy."""

import errno
import os
import stat
import threading

import pytest

from trinity_mini import files
from trinity_mini.files import UserError, write_atomically


class FullDisk:
    """A file on a disk without space: half of what is written arrives."""

    def __init__(self, path, mode):
        self.file = open(path, mode)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, content):
        self.file.write(content[: len(content) // 2])
        raise full()


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "a file.bin"
    path.write_bytes(b"old")
    return path


def test_writes_replaces_and_leaves_nothing_else(target):
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(target.parent.iterdir()) == [target]


def test_makes_folders_and_takes_a_string(tmp_path):
    write_atomically(str(tmp_path / "a" / "b" / "c"), b"")
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b""


@pytest.mark.parametrize("where", ["open", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(target, monkeypatch, where):
    if where == "open":
        monkeypatch.setattr(files, "open", FullDisk, raising=False)
    else:
        monkeypatch.setattr(os, where, full)
    with pytest.raises(UserError, match="free some space or choose another folder") as caught:
        write_atomically(target, b"something new")
    assert str(target) in str(caught.value) and "No space left" in str(caught.value)
    monkeypatch.undo()
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]


def test_an_interruption_leaves_the_old_file(target, monkeypatch):
    def ctrl_c(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]


def test_a_file_where_a_folder_should_be(target):
    with pytest.raises(UserError, match="choose another folder"):
        write_atomically(target / "below" / "x", b"new")
    with pytest.raises(UserError, match="choose another folder"):
        write_atomically(target / "x", b"new")
    assert target.read_bytes() == b"old"


def test_a_folder_where_the_file_should_be(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(UserError, match="choose another folder"):
        write_atomically(tmp_path / "x", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_an_error_without_a_reason_is_still_a_sentence(target, monkeypatch):
    def odd(*_):
        raise OSError("odd")

    monkeypatch.setattr(os, "replace", odd)
    with pytest.raises(UserError, match=r"\(odd\)"):
        write_atomically(target, b"new")


@pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")
def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old", encoding="utf-8")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    read = []
    reader.start()
    write_atomically(pipe, b"through")
    reader.join(10)
    assert read == [b"through"] and stat.S_ISFIFO(pipe.stat().st_mode)
