"""A file is never half written, and what went wrong is said with its remedy."""

import errno
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from trinity_mini import files
from trinity_mini.files import ROOT, UserError, sweep, write_atomically


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


WRITER = """
import sys
from pathlib import Path
from trinity_mini.files import write_atomically
print("told")  # waits in a buffer
write_atomically(Path(sys.argv[1]), b"rows\\n")
print("done")
"""


@pytest.fixture(params=["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "a link", "a link to its folder", "/dev/stderr"])
def stream(request, tmp_path):
    """A name of standard output, or of standard error sent there."""
    name = {"a link": str(tmp_path / "link"), "a link to its folder": str(tmp_path / "link" / "stdout")}.get(
        request.param, request.param
    )
    if not os.path.exists("/dev/stdout" if "link" in name else name):
        pytest.skip(f"no {name} here")
    if "link" in name:
        (tmp_path / "link").symlink_to("/dev" if "folder" in request.param else "/dev/stdout")
    return name


def writes(stream, **options):
    command = [sys.executable, "-c", WRITER, stream]
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.STDOUT, check=True, timeout=60, **options).stdout


@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_standard_output_that_goes_to_a_file_is_added_to(stream, tmp_path, mode):
    log = tmp_path / "log.txt"
    log.write_bytes(b"before\n")
    inode = log.stat().st_ino
    with open(log, mode) as f:
        writes(stream, stdout=f)
    assert log.read_bytes() == b"before\n" * (mode == "ab") + b"told\nrows\ndone\n" and log.stat().st_ino == inode
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({"log.txt", *(["link"] if "link" in stream else [])})


def test_standard_output_that_goes_to_a_pipe_is_written_to(stream):
    assert writes(stream, stdout=subprocess.PIPE) == b"told\nrows\ndone\n"


def test_an_open_file_of_another_process_is_added_to(tmp_path):
    if not os.path.exists(f"/proc/{os.getpid()}/fd"):
        pytest.skip("no /proc here")
    log = tmp_path / "log.txt"
    log.write_bytes(b"before\n")
    with open(log, "ab") as f:
        command = [sys.executable, "-c", WRITER, f"/proc/{os.getpid()}/fd/{f.fileno()}"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True, timeout=60)
    assert log.read_bytes() == b"before\nrows\n" and [p.name for p in tmp_path.iterdir()] == ["log.txt"]


@pytest.mark.skipif(os.name != "posix", reason="devices of POSIX")
def test_devices_and_what_is_none():
    write_atomically("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    if os.path.exists("/dev/full"):
        with pytest.raises(UserError, match="No space left"):
            write_atomically("/dev/full", b"x")
    for nowhere in ("/dev/fd/999", "/dev/fd/x", "/proc/nothing"):
        with pytest.raises(UserError, match="cannot write"):
            write_atomically(nowhere, b"x")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm here")
def test_a_file_in_shared_memory_is_a_file(tmp_path_factory):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for content in (b"old and long", b"new"):
            write_atomically(os.path.join(folder, "x"), content)
        assert Path(folder, "x").read_bytes() == b"new"


# ---------------------------------------------------------------- many writers, names, permissions


def test_many_threads_write_one_file_and_no_reader_sees_a_part(tmp_path):
    path, failed, parts, sizes = tmp_path / "x", [], [], (1000, 300_000, 5)
    path.write_bytes(b"A" * 5)
    done = threading.Event()

    def write(n):
        try:
            for _ in range(40):
                write_atomically(path, b"A" * n)
        except UserError as e:
            failed.append(str(e))

    def read():
        while not done.is_set():
            if len(path.read_bytes()) not in sizes:
                parts.append(1)

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(n,)) for n in sizes]
    for t in (reader, *writers):
        t.start()
    for t in writers:
        t.join()
    done.set()
    reader.join()
    if os.name == "posix":  # Windows refuses to replace a file that somebody reads
        assert failed == []
    assert parts == [] and [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("n", [200, 250, 255])
def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path, n):
    try:
        (tmp_path / ("a" * n)).write_bytes(b"old")
    except OSError:
        pytest.skip("too long for this file system")
    write_atomically(tmp_path / ("a" * n), b"new")
    assert (tmp_path / ("a" * n)).read_bytes() == b"new"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o664, 0o755, 0o400])
def test_permissions_stay_and_the_content_is_never_more_open(target, monkeypatch, mode):
    target.chmod(mode)
    seen, sync = [], os.fsync

    def fsync(descriptor):
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(target, b"new")
    assert stat.S_IMODE(target.stat().st_mode) == mode and seen == [mode] and target.read_bytes() == b"new"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_new_file_has_the_permissions_that_any_has(tmp_path):
    (tmp_path / "usual").write_bytes(b"")
    write_atomically(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_what_killed_processes_left_is_swept_and_nothing_else(tmp_path):
    code = (
        "import os, signal, sys; from trinity_mini.files import write_atomically\n"
        "os.fsync = lambda _: os._exit(9)\nwrite_atomically(sys.argv[1], b'half')"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "log.jsonl")], cwd=ROOT, timeout=60)
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / ".checkpoint.pkl.4711.tmp").write_bytes(b"half")  # by an older version
    kept = ["x.tmp", ".mine.tmp", "log.jsonl", ".hidden", "replies.sqlite", ".0123456789abcdef.tmp.bak"]
    for name in kept:
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".fedcba9876543210.tmp").mkdir()  # no file
    sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*kept, ".fedcba9876543210.tmp"])
    sweep(tmp_path / "nowhere")
