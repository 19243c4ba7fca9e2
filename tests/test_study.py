"""Studies: what stops them changes nothing, here, in processes and on a cluster."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from toy_study import toy

from trinity_mini import study as module
from trinity_mini.files import UserError
from trinity_mini.study import MODULES, Study, collect, frame, job_key, run_study, study

HERE = Path(__file__).resolve().parent


def rows(path):
    head, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return head, [{k: v for k, v in line.items() if k != "pid"} for line in lines]


WANTED = [{"seed": i, "square": i * i} for i in range(6)]


@pytest.mark.parametrize("processes", [1, 2])
def test_every_job_is_run_once_and_kept_in_order(tmp_path, processes):
    s = toy()
    assert [done for done, _ in run_study(s, tmp_path / "a", processes=processes)] == list(range(7))
    before = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    assert list(run_study(s, tmp_path / "a", processes=processes)) == [(6, 6)]
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    head, found = rows(collect(s, tmp_path / "a", tmp_path))
    assert found == WANTED and head["study"] == "toy" and head["machine"] and head["commit"]
    data = frame("toy", tmp_path)
    assert data.square.tolist() == [0, 1, 4, 9, 16, 25]
    assert (len(set(data.pid)) == 1) == (processes == 1) and (os.getpid() in set(data.pid)) == (processes == 1)


@pytest.mark.parametrize("platform, wanted", [("win32", 61), ("linux", 256), ("darwin", 256)])
def test_windows_takes_no_more_processes_than_it_can_wait_for(monkeypatch, platform, wanted):
    asked = []

    class Pool:
        def __init__(self, processes, *_, **__):
            asked.append(processes)
            self.submit = self.shutdown = lambda *_, **__: None

    monkeypatch.setattr(module, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(sys, "platform", platform)
    for processes in (2, 61, 256):
        with module._executor(processes, None):
            pass
    assert asked == [2, 61, wanted]


def test_the_quick_form_runs_its_own_jobs(tmp_path):
    s = toy()
    assert list(run_study(s, tmp_path, quick=True))[-1] == (2, 2)
    assert rows(collect(s, tmp_path, tmp_path, quick=True))[1] == WANTED[:2]


def test_killed_in_the_middle_it_goes_on(tmp_path):
    code = f"""
import sys
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
from pathlib import Path
from toy_study import toy
from trinity_mini.study import run_study
for done, n in run_study(toy(wait=0.3), Path({str(tmp_path / "a")!r})):
    print(done, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        while child.stdout.readline().strip() != "2":
            pass
        child.kill()
    kept = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "a").glob("*.json")}
    assert 2 <= len(kept) < 6
    s = toy(wait=0.3)
    assert next(iter(run_study(s, tmp_path / "a"))) == (len(kept), 6)
    assert list(run_study(s, tmp_path / "a"))[-1] == (6, 6)
    assert all((tmp_path / "a" / name).stat().st_mtime_ns == at for name, at in kept.items())
    assert rows(collect(s, tmp_path / "a", tmp_path))[1] == [{**row, "wait": 0.3} for row in WANTED]


def test_a_job_that_fails_is_named_and_the_others_rows_stay(tmp_path):
    s = toy(3)
    s = replace(s, jobs=[*s.jobs, {"seed": 9, "fails": True}, {"seed": 10}])
    for processes in (1, 2):
        with pytest.raises(UserError, match="toy failed .ZeroDivisionError: no such luck"):
            list(run_study(s, tmp_path, processes=processes))
        assert len(list(tmp_path.glob("*.json"))) >= 3


def test_damaged_rows_are_made_again(tmp_path):
    s = toy(2)
    list(run_study(s, tmp_path))
    for text in ("", "[]", "{}", "{\"rows\": [", "3"):
        path = tmp_path / f"{job_key('toy', s.jobs[0])}.json"
        path.write_text(text, encoding="utf-8")
        assert list(run_study(s, tmp_path)) == [(1, 2), (2, 2)]
    assert rows(collect(s, tmp_path, tmp_path))[1] == WANTED[:2]


@pytest.fixture(scope="module")
def cluster():
    """A dask scheduler on loopback with two workers, each a process of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]), "OMP_NUM_THREADS": "1"}
    processes = []

    def start(name, *args):
        command = [sys.executable, "-m", f"distributed.cli.dask_{name}", *args]
        p = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        processes.append(p)
        return p

    scheduler = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    for line in scheduler.stderr:
        if "Scheduler at:" in line:
            address = line.split()[-1]
            break
    workers = [
        start("worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1") for _ in "ab"
    ]
    yield address, workers
    for p in processes:
        p.kill()
        p.wait()
        p.stderr.close()


def test_a_cluster_gives_the_same_also_when_a_worker_is_killed(tmp_path, cluster):
    address, workers = cluster
    s = toy(wait=1.0)
    run = run_study(s, tmp_path / "a", cluster=address)
    assert next(run) == (0, 6)
    assert next(run) == (1, 6)
    time.sleep(0.3)
    workers[0].send_signal(signal.SIGKILL)
    assert list(run)[-1] == (6, 6)
    assert rows(collect(s, tmp_path / "a", tmp_path))[1] == [{**row, "wait": 1.0} for row in WANTED]


def test_without_a_scheduler_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 1)
    with pytest.raises(UserError, match="no dask scheduler at tcp://127.0.0.1:1 "):
        list(run_study(toy(), tmp_path, cluster="tcp://127.0.0.1:1"))


def test_unknown_names_and_missing_files(tmp_path):
    with pytest.raises(UserError, match="unknown study 'nothing': choose from "):
        study("nothing")
    with pytest.raises(UserError, match="run `python -m trinity_mini study toy`"):
        frame("toy", tmp_path)


@pytest.mark.parametrize("name", MODULES)
def test_jobs_are_plain_and_different(name):
    s = study(name)
    assert isinstance(s, Study) and s.name == name and s.what
    for jobs in (s.jobs, s.quick):
        assert json.loads(json.dumps(list(jobs))) == list(jobs)
        assert len({job_key(name, job) for job in jobs}) == len(jobs) > 0


# --- damaged files ------------------------------------------------------------------------


def recorded(folder, s):
    list(run_study(s, folder / "state"))
    return collect(s, folder / "state", folder)


def damaged(text):
    """Ways a study's file may come back: cut, doubled, headless, another study's, not JSON, not finite."""
    head, *lines = text.splitlines()
    return {
        "empty": "",
        "head only": head,
        "cut at a line": "\n".join([head, *lines[:-1]]) + "\n",
        "cut in a line": text[:-5],
        "a row twice": "\n".join([head, *lines, lines[0]]) + "\n",
        "no head": "\n".join(lines) + "\n",
        "another study": text.replace('"study": "toy"', '"study": "game"'),
        "a list for a head": "[]\n" + "\n".join(lines),
        "nested without end": "[" * 100_000,
        "a number changed": text.replace('"square": 16', '"square": 17'),
        "NUL": "\0" * 50,
    }


@pytest.mark.parametrize("what", damaged('{"study": "toy"}\n{"square": 16}\n{}'))
def test_a_damaged_file_is_refused(what, tmp_path):
    path = recorded(tmp_path, toy())
    assert len(frame("toy", tmp_path)) == 6
    path.write_text(damaged(path.read_text(encoding="utf-8"))[what], encoding="utf-8")
    with pytest.raises(UserError, match="run `python -m trinity_mini study toy`"):
        frame("toy", tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: {"rows": []}, lambda r: r | {"rows": None}, lambda r: r | {"rows": [1, 2]}, lambda r: [r],
        lambda r: r | {"job": {"seed": 7}}, lambda r: r | {"seconds": {"cpu": "no"}}, lambda r: r | {"machine": 3},
        lambda r: {k: v for k, v in r.items() if k != "commit"}, lambda r: r | {"rows": [{"square": float("nan")}]},
    ],
)  # fmt: skip
def test_a_record_that_no_job_wrote_is_made_again(change, tmp_path):
    s = toy()
    wanted = recorded(tmp_path, s).read_bytes()
    path = tmp_path / "state" / f"{job_key('toy', s.jobs[3])}.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(change(record)), encoding="utf-8")
    assert next(run_study(s, tmp_path / "state")) == (5, 6)
    found = recorded(tmp_path, s)
    assert rows(found)[1] == WANTED and len(found.read_bytes()) == len(wanted)


def test_workers_end_with_a_killed_parent(tmp_path):
    code = f"""
import sys
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
from pathlib import Path
from toy_study import toy
from trinity_mini.study import run_study
if __name__ == "__main__":
    for done, n in run_study(toy(wait=30), Path({str(tmp_path / "a")!r}), processes=2):
        print(done, flush=True)
"""
    script = tmp_path / "parent.py"
    script.write_text(code, encoding="utf-8")
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "0\n"
        workers = []
        deadline = time.monotonic() + 60
        while len(workers) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            workers = children(parent.pid)
        parent.kill()
    assert len(workers) >= 2
    while any(map(alive, workers)) and time.monotonic() < deadline + 30:
        time.sleep(0.2)
    assert not [p for p in workers if alive(p)]


def children(pid):
    """Python workers of a process, by /proc; skipped where there is none."""
    if not Path("/proc/self/task").exists():
        pytest.skip("processes are looked up in /proc")
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [p for p in found if "spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes().decode().replace("\0", " ")]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
