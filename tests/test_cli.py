"""The commands: what they print and write, and what they say to bad input."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from world import PRESET, LetterPool, coordinator

from trinity_mini import __main__ as cli
from trinity_mini import commands, evaluation, worlds
from trinity_mini.files import DATA, ROOT, UserError
from trinity_mini.presets import preset
from trinity_mini.skills import skill_table
from trinity_mini.task_sets import embedded_tasks
from trinity_mini.tasks import FAMILIES, KINDS

KEYS = ["name", "family", "value", "se", "n", "unit"]
posix = pytest.mark.skipif(os.name != "posix", reason="signals and closed pipes of POSIX")


@pytest.fixture(scope="module")
def skills(tmp_path_factory):
    return skill_table(LetterPool(tmp_path_factory.mktemp("letters")), n=8)


class World:
    """The CLI over a very small world whose files lie in one folder."""

    def __init__(self, folder, skills):
        self.folder, self.pool, self.coordinator = folder, LetterPool(folder / "data" / "tiny_pool"), coordinator(3)
        self.pool.folder.mkdir(parents=True)
        skills.to_csv(self.pool.folder / "skills.csv", index=False)
        self.theta(folder / "data" / "coordinator")

    def __call__(self, name, folder, pool_file=None, root=None, trained_in=None):
        p = replace(PRESET, name=preset(name).name, generations=2)
        return worlds.World(self.pool, self.coordinator, p, embedded_tasks(p))

    def theta(self, folder, name="theta.safetensors", seed=0, pool=None, coordinator=None):
        c = coordinator or self.coordinator
        theta = np.random.default_rng(seed).standard_normal(c.n) * c.stds(3, 0.1)
        c.save(folder / name, theta, pool or self.pool.identity)
        return folder / name

    def files(self):
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}


@pytest.fixture
def world(tmp_path, monkeypatch, skills):
    w = World(tmp_path, skills)
    monkeypatch.setattr(worlds, "world", w)
    for module in (cli, commands):
        monkeypatch.setattr(module, "DATA", tmp_path / "data")
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    chain = {"chain": [[0, 1], [1, 0]], "train": 0.5}
    found = {
        "pool": w.pool.identity, "alone": {n: chain for n in w.pool.names}, "family": {f: chain for f in FAMILIES},
        "kind": {k: chain for f in FAMILIES for k in KINDS[f]},
    }  # fmt: skip
    monkeypatch.setattr(evaluation, "load_chains", lambda pool: found)
    return w


def called(*args):
    """The exit code, also of argparse."""
    try:
        return cli.main([str(a) for a in args])
    except SystemExit as e:
        return e.code


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} in JSON")

    rows = json.loads(text, parse_constant=refuse)
    assert rows and all(list(r) == KEYS for r in rows)
    for r in rows:
        assert isinstance(r["name"], str) and isinstance(r["family"], str) and isinstance(r["unit"], str)
        assert r["n"] is None or isinstance(r["n"], int)
        assert r["se"] is None or isinstance(r["se"], float | int)
    return rows


# ---------------------------------------------------------------- what the commands do


def test_train_writes_a_run_three_figures_and_rows(world, capsys):
    figures = {"learning_curve.png", "skills.png", "speakers.png"}
    assert called("train", "--seed", 3, "--per-family", 5, "--json", "new/rows.json") == 0
    run = world.folder / "runs" / "mini-3"
    assert {p.name for p in run.iterdir()} == figures | {
        "config.json", "log.jsonl", "timing.jsonl", "checkpoint.pkl", "theta.safetensors"
    }  # fmt: skip
    rows = strict((world.folder / "new" / "rows.json").read_text())
    assert [r["n"] for r in rows if r["unit"] == "reward"] == [24, 48]
    accuracies = {(r["name"], r["family"]): r for r in rows if r["unit"] == "accuracy"}
    assert accuracies["trained coordinator", "all"]["n"] == 20 and ("random coordinator", "math") in accuracies
    assert accuracies["majority vote", "know"]["n"] == 5
    out = capsys.readouterr().out
    assert "generation   2/2" in out and "ETA" in out and "Accuracy ± standard error on 5 held-out" in out
    before, asked = world.files(), world.pool.asked
    assert called("train", "--seed", 3, "--no-evaluate") == 0  # done: nothing is played again
    assert world.files() == before and world.pool.asked == asked


def test_train_by_episodes_rounds_to_generations(world):
    assert called("train", "--episodes", 60, "--no-evaluate", "--out", "x") == 0
    config = json.loads((world.folder / "x" / "config.json").read_text())
    assert config["preset"]["generations"] == 2 and config["seed"] == 1
    assert called("train", "--episodes", 1, "--no-evaluate", "--out", "y") == 0
    assert len((world.folder / "y" / "log.jsonl").read_text().splitlines()) == 1


def test_evaluate_compares_checkpoints(world, capsys):
    a, b = world.theta(world.folder / "a", seed=1), world.theta(world.folder / "b", seed=2)
    assert called("evaluate", a, b, "--per-family", 4, "--json", "rows.json") == 0
    rows = strict((world.folder / "rows.json").read_text())
    assert {"trained: a", "trained: b"} <= {r["name"] for r in rows}
    assert capsys.readouterr().out.count("trained:") == 2
    units = {r["unit"] for r in rows}
    assert units == {"accuracy", "turns", "calls"}
    assert {r["value"] for r in rows if r["name"].startswith("oracle") and r["unit"] == "turns"} == {None}


def test_two_checkpoints_of_one_folder_are_two_lines(world, capsys):
    a, b = world.theta(world.folder / "a", "one.safetensors", 1), world.theta(world.folder / "a", "two.safetensors", 2)
    world.theta(world.folder / "a", "theta.safetensors", 3)
    assert called("evaluate", world.folder / "a", "--per-family", 4) == 0  # a run folder will do
    assert called("evaluate", a, b, a, "--per-family", 4, "--json", "rows.json") == 0
    rows = strict((world.folder / "rows.json").read_text())
    found = {r["name"]: r["n"] for r in rows if r["name"].startswith("trained") and r["family"] == "all"}
    assert found == {f"trained: {a}": 16, f"trained: {b}": 16}


def test_evaluate_on_chosen_families(world):
    assert called("evaluate", "--family", "math", "--family", "math", "--per-family", 4, "--json", "a.json") == 0
    rows = strict((world.folder / "a.json").read_text())
    names = {r["name"] for r in rows}
    assert {r["family"] for r in rows} == {"math", "all"} and {r["n"] for r in rows if r["unit"] == "accuracy"} == {4}
    assert called("evaluate", "--family", "math-hard", "--per-family", 4, "--json", "b.json") == 0
    rows = strict((world.folder / "b.json").read_text())
    assert {r["name"] for r in rows} == names and {r["family"] for r in rows} == {"math-hard", "all"}


def test_the_same_seed_gives_the_same_table(world, capsys):
    tables = []
    for seed in (5, 5, 6):
        assert called("evaluate", "--per-family", 6, "--seed", seed) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] != tables[2]


@pytest.mark.parametrize(
    "question", ["capital peru", "(3*6-3)%7", "what is love? ñ 日本", " padded ", "-", "TWV.#", "x" * 120]
)
def test_ask_tells_an_episode(world, capsys, question):
    assert called("ask", "--json", "rows.json", "--", question) == 0
    out = capsys.readouterr().out
    assert out.startswith("Question (") and question.strip() in out
    [row] = strict((world.folder / "rows.json").read_text())
    assert (row["name"], row["unit"]) == ("answer", "text")


def test_ask_takes_a_run_folder_as_evaluate_does(world, capsys):
    path, told = world.theta(world.folder / "run", seed=4), []
    for given in (path, path.parent):
        assert called("ask", "capital peru", "--checkpoint", given) == 0
        told.append(capsys.readouterr().out)
    assert called("ask", "capital peru") == 0
    assert told[0] == told[1] != capsys.readouterr().out


def test_json_on_standard_output_is_json_alone(world, capsys):
    assert called("evaluate", "--per-family", 4, "--json", "-") == 0
    captured = capsys.readouterr()
    assert len(strict(captured.out)) > 20 and "Accuracy ± standard error" in captured.err


def test_rows_are_strict_json_whatever_the_numbers():
    row = dict(zip(KEYS, ["x", "y", float("nan"), np.float64("inf"), np.int64(3), "z"], strict=True))
    assert strict(cli.as_json([row])) == [dict(zip(KEYS, ["x", "y", None, None, 3, "z"], strict=True))]


# ---------------------------------------------------------------- bad input


def refused(world, capsys, *args, code=2):
    """One sentence on stderr, exit code 2, nothing written and nobody asked."""
    before, asked = world.files(), world.pool.asked
    assert called(*args) == code
    captured = capsys.readouterr()
    assert world.files() == before and world.pool.asked == asked
    assert "Traceback" not in captured.err
    last = captured.err.strip().splitlines()[-1]
    assert "error: " in last
    return last


@pytest.mark.parametrize(
    "args, says",
    [
        (["train", "--preset", "nope"], "unknown preset 'nope': choose from mini"),
        (["evaluate", "--preset", "nope"], "unknown preset"),
        (["ask", "capital peru", "--preset", "nope"], "unknown preset"),
        (["evaluate", "--family", "sport"], "unknown family 'sport': choose from math"),
        (["make-pool", "--agent", "zoe"], "unknown agent 'zoe': choose from ada"),
        (["ask", ""], "the question is empty: give one in quotes"),
        (["ask", " \t\n"], "the question is empty"),
        (["ask", "x" * 10_000], "the question has 10000 characters: shorten it to 120"),
        (["ask", "capital\x1b[31m peru"], "cannot be printed"),
        (["ask", "capital\nperu"], "cannot be printed"),
        (["ask", "capital\udc80peru"], "cannot be printed"),
        (["train", "--per-family", "9999"], "the test split of know holds 239 questions: ask for no more"),
        (["evaluate", "--per-family", "9999"], "the test split of know holds 239 questions"),
        (["train", "--json", "."], "cannot write .: give a file in a folder that can be written"),
        (["evaluate", "--json", "data/tiny_pool/skills.csv/x"], "give a file in a folder that can be written"),
        (["bench", "svf", "--json", "data"], "cannot write data"),
        (["train", "--figures", "data/tiny_pool/skills.csv"], "cannot write .*skills.csv.x: give a file in a folder"),
        (["make-pool", "--out", "data/tiny_pool/skills.csv"], "cannot write"),
        (["make-pool", "--state", "data/tiny_pool/skills.csv"], "cannot write"),
        (["train", "--out", "data"], "data exists and is not a run folder: choose another --out folder"),
        (["train", "--out", "data/tiny_pool/skills.csv"], "is not a run folder: choose another --out folder"),
        (["evaluate", "nowhere.safetensors"], "cannot read nowhere.safetensors .*: check the path, or train one"),
        (["evaluate", "data"], "cannot read data.theta.safetensors .*check the path"),
        (["evaluate", "data/tiny_pool/skills.csv"], "truncated or not a coordinator .*: restore it"),
        (["ask", "capital peru", "--checkpoint", "nowhere"], "cannot read nowhere"),
        (["ask", "capital peru", "--checkpoint", "data"], "cannot read data.theta.safetensors .*check the path"),
        (["evaluate", "--root", "nowhere"], "--root is of benchmark files, and the preset mini asks none: leave it"),
        (["evaluate", "--root", "data"], "the preset mini asks none: leave it out"),
        (["evaluate", "--preset", "laptop", "--root", "data"], "the preset laptop asks none"),
        (["evaluate", "--preset", "gpu-open", "--root", "nowhere"], "--root nowhere is no folder: give the one"),
        (["train", "--root", "data"], "the preset mini asks none"),
        (["train", "--preset", "gpu-open", "--root", "nowhere"], "--root nowhere is no folder"),
        (["train", "--preset", "nope", "--root", "data"], "unknown preset"),
        (["bench", "es", "--model", "x"], "--model and --device are of .bench states., not of .bench es."),
        (["bench", "svf", "--device", "cpu"], "not of .bench svf.: leave them out"),
        (["bench", "episodes", "--model", "x", "--device", "cpu", "--quick"], "not of .bench episodes."),
    ],
)
def test_what_the_user_can_mend_is_said_in_a_sentence(world, capsys, args, says):
    import re

    last = refused(world, capsys, *args)
    assert last.startswith("error: ") and re.search(says, last) and last.endswith(".")


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["dance"],
        ["bench", "all"],
        ["ask"],
        *(["train", "--episodes", n] for n in ("0", "-1", "x", "1.5", "", "9" * 5000)),
        *(["train", "--per-family", n] for n in ("0", "-3")),
        *([c, "--seed", n] for c in ("train", "evaluate", "make-pool") for n in ("-1", "4294967296", "x")),
        ["ask", "capital peru", "--seed", "-1"],
        *(["--threads", n, "bench", "es"] for n in ("0", "257")),
        ["make-pool", "--steps", "0"],
    ],
    ids=lambda args: " ".join(args)[:40],
)
def test_what_argparse_refuses(world, capsys, args):
    last = refused(world, capsys, *args)
    assert len(last) < (300 if args == ["dance"] else 200)  # it lists the commands
    if "--seed" in args:
        assert "is not a whole number from 0 to 4294967295" in last


def test_the_largest_seed_works(world):
    assert called("ask", "capital peru", "--seed", 2**32 - 1) == 0
    assert called("train", "--seed", 2**32 - 1, "--no-evaluate", "--episodes", 24) == 0


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda w, f: w.theta(f, pool="other"), "was made for another pool"),
        (lambda w, f: w.theta(f, coordinator=coordinator(3, matrices="none")), "was made for another matrix set"),
        (lambda w, f: w.theta(f, coordinator=coordinator(3, head="low-rank")), "was made for another head"),
        (lambda w, f: w.theta(f, coordinator=coordinator(3, seed=9)), "was made for another backbone"),
        (lambda w, f: w.theta(f, coordinator=coordinator(2)), "was made for another number of agents"),
    ],
    ids=["pool", "matrices", "head", "backbone", "agents"],
)
def test_a_checkpoint_of_another_layout_is_refused_before_any_work(world, capsys, make, says):
    path = make(world, world.folder / "other")
    assert says in refused(world, capsys, "evaluate", "data/coordinator/theta.safetensors", path)
    assert says in refused(world, capsys, "ask", "capital peru", "--checkpoint", path)


def test_a_truncated_checkpoint_is_refused(world, capsys):
    path = world.theta(world.folder / "cut")
    path.write_bytes(path.read_bytes()[:-8])
    assert "truncated or not a coordinator" in refused(world, capsys, "evaluate", path)


def test_a_run_with_another_seed_or_budget_is_refused(world, capsys):
    assert called("train", "--out", "run", "--no-evaluate") == 0
    capsys.readouterr()
    assert "with another seed (1, not 2)" in refused(world, capsys, "train", "--out", "run", "--seed", 2)
    said = refused(world, capsys, "train", "--out", "run", "--episodes", 240)
    assert "with another preset generations (2, not 10)" in said


def test_a_read_only_folder_is_refused_before_any_work(world, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "give a file in a folder that can be written" in refused(world, capsys, "evaluate", "--json", "rows.json")


@posix
def test_what_is_written_to_as_it_is_needs_no_folder_to_write_in(world, monkeypatch, tmp_path):
    """Nobody but root may make a file in /dev, and /dev/stdout is none to be made."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr(os, "access", lambda path, mode: os.path.exists(path) and not os.path.isdir(path))
    for path in ("/dev/null", "/dev/stdout", "/dev/fd/1", tmp_path / "pipe"):
        commands.writable(Path(path))
    for path in ("/dev", "/dev/nothing", "/dev/fd/999", tmp_path / "file", tmp_path / "new"):
        with pytest.raises(UserError, match="cannot write"):
            commands.writable(Path(path))


def test_rows_that_cannot_be_written_at_the_end_are_printed(world, capsys, monkeypatch):
    def full(path, content):
        raise UserError(f"cannot write {path} (No space left on device): free some space.")

    monkeypatch.setattr(cli, "write_atomically", full)
    assert called("ask", "capital peru", "--json", "rows.json") == 2
    captured = capsys.readouterr()
    assert "No space left" in captured.err
    assert strict(captured.out[captured.out.index("[\n") :])[0]["name"] == "answer"


# ---------------------------------------------------------------- output that goes nowhere


class Gone:
    def __init__(self, error):
        self.error = error

    def write(self, text):
        raise self.error

    flush = write

    def fileno(self):
        raise OSError("no such file")


@pytest.mark.parametrize(
    "error, code, says",
    [(BrokenPipeError(), 141, ""), (OSError(errno.ENOSPC, "No space left on device"), 2, "free some space")],
)
def test_output_that_nobody_takes(world, capsys, monkeypatch, error, code, says):
    monkeypatch.setattr(sys, "stdout", Gone(error))
    assert called("ask", "capital peru") == code
    said = capsys.readouterr().err
    assert says in said and len(said.splitlines()) == bool(says)


def test_without_standard_output_the_work_is_done(world, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert called("ask", "capital peru", "--json", "rows.json") == 0
    assert called("ask", "capital peru", "--json", "-") == 0
    assert strict((world.folder / "rows.json").read_text())


# ---------------------------------------------------------------- real processes


def process(*args, **options):
    def default():  # a shell ignores SIGINT for what it starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)

    command = [sys.executable, *options.pop("python", []), "-m", "trinity_mini", *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"} | options
    return subprocess.Popen(command, cwd=ROOT, preexec_fn=default if os.name == "posix" else None, **pipes)


@contextlib.contextmanager
def ended(p):
    try:
        yield p
    finally:
        p.kill()
        p.communicate()


STOPPED = "stopped: what was finished is kept; give the same command again, and a training goes on from there."


@posix
@pytest.mark.parametrize(
    "after", ["argparse", "trinity_mini.files", "numpy._core", "torch._C", "trinity_mini.backbone"]
)
def test_ctrl_c_during_the_imports(after):
    """`-X importtime` tells how far it is."""
    with ended(process("ask", "capital peru", python=["-X", "importtime"])) as p:
        for line in p.stderr:
            if line.rpartition("|")[2].strip() == after:
                break
        p.send_signal(signal.SIGINT)
        lines = [line for line in p.stderr.read().splitlines() if line and not line.startswith("import time:")]
        assert (p.wait(60), lines) == (130, [STOPPED])


@posix
def test_ctrl_c_during_a_training(tmp_path):
    with ended(process("train", "--preset", "quick", "--out", tmp_path, "--no-evaluate")) as p:
        assert "Ctrl-C stops" in p.stdout.readline()
        assert "generation   1/" in p.stdout.readline()
        time.sleep(0.5)
        p.send_signal(signal.SIGINT)
        said = p.stderr.read().splitlines()
        assert (p.wait(60), [line for line in said if line]) == (130, [STOPPED])
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) >= 1 and (tmp_path / "checkpoint.pkl").exists()
    assert not (tmp_path / "theta.safetensors").exists()


@posix
def test_a_reader_that_goes_away_and_a_full_disk(tmp_path):
    w = worlds.world("mini", tmp_path)
    pool, c = w.pool, w.coordinator
    c.save(tmp_path / "zero", np.zeros(c.n), pool.identity)
    ask = ["ask", "capital peru", "--checkpoint", tmp_path / "zero"]
    with ended(process(*ask)) as p:
        p.stdout.close()
        assert (p.stderr.read(), p.wait(60)) == ("", 141)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full, ended(process(*ask, stdout=full)) as p:
            said = p.stderr.read()
            assert p.wait(60) == 2 and said.startswith("error: ") and "Traceback" not in said
            assert len(said.splitlines()) == 1


def test_the_shipped_coordinator_answers():
    with ended(process("ask", "capital peru", "--json", "-")) as p:
        out, said = p.communicate(timeout=120)
        assert p.returncode == 0 and strict(out)[0]["family"] == "know" and "Question (know): capital peru" in said


def test_the_shipped_theta_is_of_the_shipped_pool_and_beats_chance():
    from trinity_mini.tasks import question_set
    from trinity_mini.training import mean_reward, play_policy

    w = worlds.world("mini", DATA)
    pool, c, p = w.pool, w.coordinator, w.preset
    theta = c.load(DATA / "coordinator" / "theta.safetensors", pool.identity)
    asked = question_set("test", 40, 3)
    trained, _, lost = mean_reward(play_policy(c, theta, asked, pool, p, 0))
    uniform, _, _ = mean_reward(play_policy(c, np.zeros(c.n), asked, pool, p, 0))
    assert not lost and trained > uniform + 0.2
