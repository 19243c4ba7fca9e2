"""The training run: what it computes, what stops it, and that nothing which stops it changes its result."""

import errno
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from world import PRESET, ScriptedPool, answer_of, coordinator, training

from trinity_mini import files
from trinity_mini import training as module
from trinity_mini.coordinator import read_checkpoint
from trinity_mini.episode import Episode, Transcript, Turn, fixed, play, run, uniforms
from trinity_mini.files import UserError
from trinity_mini.pool import Reply
from trinity_mini.pycma_strategy import pycma_strategy
from trinity_mini.roles import Role
from trinity_mini.sep_cma_es import paper_popsize
from trinity_mini.tasks import FAMILIES, Question, questions
from trinity_mini.templates import router_text
from trinity_mini.training import Generation, Router, draw_questions, mean_reward, play_policy

HERE = Path(__file__).resolve().parent
QUESTION = Question("math", "infix", "(3*6-3)%7", "2r1", "")


def contents(folder):
    """Every file of a run that its settings decide (timing.jsonl holds the clock)."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name not in ("timing.jsonl", "checkpoint.pkl")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its folder and log."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, list(training(folder))


# ---------------------------------------------------------------- the run and its folder


def test_the_log_says_what_happened(whole):
    folder, log = whole
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [Generation(**row) for row in rows] == log
    assert [g.generation for g in log] == [1, 2, 3, 4] and [g.episodes for g in log] == [24, 48, 72, 96]
    assert [g.validation is None for g in log] == [True, False, True, False]
    for g in log:
        assert 0 <= g.reward <= g.best <= 1 and g.lost == 0 and 1 <= g.turns <= 5 and g.sigma > 0
    timing = [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    assert len(timing) == 4 and all(0 < t["coordinator"] <= t["cpu"] and t["wall"] > 0 for t in timing)


def test_the_answer_is_the_distribution_mean_of_the_last_generation(whole):
    folder, log = whole
    state = pickle.loads((folder / "checkpoint.pkl").read_bytes())
    theta, about = read_checkpoint(folder / "theta.safetensors")
    np.testing.assert_array_equal(theta, state["strategy"].result.xfavorite)
    assert state["strategy"].countiter == len(log) == 4
    assert about["extra"] == json.loads((folder / "config.json").read_text())
    assert about["extra"]["preset"] == json.loads(json.dumps(PRESET.record()))
    t = training(folder)
    np.testing.assert_array_equal(t.coordinator.load(folder / "theta.safetensors", "scripted"), theta)
    episodes = play_policy(t.coordinator, theta, t.validation, t.pool, t.preset, t.seed)
    assert mean_reward(episodes)[:2] == (log[-1].validation, log[-1].validation_se)


def test_it_learns_where_there_is_something_to_learn(tmp_path):
    """Only agent 0 as a Worker is ever right."""
    preset = replace(PRESET, generations=10, popsize=16, validate_every=10, validation_per_family=10, sigma0=1.0)
    log = list(training(tmp_path, preset=preset, matrices="none"))
    t = training(tmp_path, preset=preset, matrices="none")
    assert log[-1].validation > t.validate(np.zeros(t.coordinator.n))[0] + 0.15


def test_a_seed_fixes_the_run_and_another_changes_it(whole, tmp_path, global_streams_untouched):
    folder, log = whole
    assert list(training(tmp_path / "same")) == log
    assert contents(tmp_path / "same") == contents(folder)
    assert list(training(tmp_path / "other", seed=2)) != log


def test_popsize_is_the_papers_unless_given():
    t = training("nowhere", preset=replace(PRESET, popsize=0))
    n = t.coordinator.n
    assert t.popsize == paper_popsize(n) == int(np.ceil(4 + 3 * np.log(n)))
    assert training("nowhere").popsize == 6
    assert not Path("nowhere").exists()


def test_a_finished_run_yields_its_last_line_and_changes_nothing(whole):
    folder, log = whole
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    t = training(folder)
    assert list(t) == log[-1:] and t.log == log and t.pool.calls == 0
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_lost_theta_is_written_again(whole, tmp_path):
    folder, _ = whole
    wanted = contents(folder)
    for p in folder.iterdir():
        (tmp_path / p.name).write_bytes(p.read_bytes())
    (tmp_path / "theta.safetensors").unlink()
    list(training(tmp_path))
    assert contents(tmp_path) == wanted


# ---------------------------------------------------------------- interruptions


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_run_that_was_left_goes_on_to_the_same_end(whole, tmp_path, at):
    folder, log = whole
    for _, g in zip(range(at), training(tmp_path), strict=False):
        assert g == log[g.generation - 1]
    assert not (tmp_path / "theta.safetensors").exists()
    assert list(training(tmp_path)) == log[at:]
    assert contents(tmp_path) == contents(folder)


@pytest.mark.parametrize("batches", [1, 8, 14])
def test_interrupted_within_a_generation_it_ends_the_same(whole, tmp_path, monkeypatch, batches):
    folder, _ = whole
    done, real = 0, Router._run

    def ctrl_c(router, asked):
        nonlocal done
        done += 1
        if done == batches:
            raise KeyboardInterrupt
        return real(router, asked)

    monkeypatch.setattr(Router, "_run", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        list(training(tmp_path))
    monkeypatch.undo()
    assert not (tmp_path / "theta.safetensors").exists()
    list(training(tmp_path))
    assert contents(tmp_path) == contents(folder)


CHILD = """
import sys, time
sys.path.insert(0, sys.argv[1])
from world import ScriptedPool, training
def slow(agent, question):
    time.sleep(0.001)
    return False
for g in training(sys.argv[2], ScriptedPool(slow)):
    print(g.generation, flush=True)
"""


def child(folder):
    def default():  # a shell ignores SIGINT for what it starts in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)

    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(HERE), str(folder)], cwd=HERE.parent,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=default if os.name == "posix" else None,
    )  # fmt: skip


@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_a_process_that_is_stopped_goes_on_to_the_same_end(whole, tmp_path, how):
    if how == "interrupt" and os.name == "nt":
        pytest.skip("Windows has no SIGINT for another process")
    process = child(tmp_path)
    try:
        assert process.stdout.readline().strip() == b"1"  # the first checkpoint is written
        time.sleep(0.1)  # where it is hit is chance
        assert process.poll() is None
        process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0 and not (tmp_path / "theta.safetensors").exists()
    log = list(training(tmp_path))
    assert 1 <= len(log) <= 3
    folder, _ = whole
    assert contents(tmp_path) == contents(folder)


def test_killed_between_the_files_of_a_generation_it_ends_the_same(whole, tmp_path, monkeypatch):
    folder, _ = whole
    written = 0

    def fails(path, content):
        nonlocal written
        written += 1
        if written == 6:  # config, then log, timing and checkpoint of generation 1, log of generation 2
            raise KeyboardInterrupt
        files.write_atomically(path, content)

    monkeypatch.setattr(module, "write_atomically", fails)
    with pytest.raises(KeyboardInterrupt):
        list(training(tmp_path))
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2
    monkeypatch.undo()
    list(training(tmp_path))
    assert contents(tmp_path) == contents(folder)


def test_what_a_kill_leaves_before_the_first_file_is_no_foreign_run(tmp_path):
    (tmp_path / ".config.json.1.tmp").write_bytes(b"{")
    assert next(iter(training(tmp_path))).generation == 1


# ---------------------------------------------------------------- rewards


def test_a_lost_call_is_left_out_and_counted(tmp_path):
    """Agent 1 is always lost for facts: what is left is the mean over the others."""
    lost = ScriptedPool(lambda agent, question: agent == 1 and " " in question)
    t = training(tmp_path, lost, preset=replace(PRESET, episodes_per_candidate=8))
    fitness, episodes = t.evaluate(np.zeros((6, t.coordinator.n)), 0)
    missing = [e for e in episodes if e.reward is None]
    assert missing and all(e.question.family == "know" and e.turns[-1].reply.lost for e in missing)
    for c in range(6):
        kept = [e.reward for e in episodes[8 * c : 8 * c + 8] if e.reward is not None]
        assert len(kept) < 8 and fitness[c] == sum(kept) / len(kept)
    first = next(iter(t))
    assert first.lost > 0 and first.episodes == 48


def strategy_that_must_not_hear(monkeypatch):
    import cma

    def tell(self, *_, **__):
        raise AssertionError("told")

    monkeypatch.setattr(cma.CMAEvolutionStrategy, "tell", tell)


def test_if_all_is_lost_the_strategy_hears_nothing(tmp_path, monkeypatch):
    strategy_that_must_not_hear(monkeypatch)
    with pytest.raises(UserError, match="were lost, .*: see to the pool, then start again to resume"):
        list(training(tmp_path, ScriptedPool(lambda agent, question: True)))
    assert {p.name for p in tmp_path.iterdir()} == {"config.json"}
    monkeypatch.undo()
    assert len(list(training(tmp_path))) == 4


def test_a_reward_that_is_no_number_never_reaches_the_strategy(tmp_path, monkeypatch):
    strategy_that_must_not_hear(monkeypatch)
    real = module.play

    async def play(question, *rest):
        episode = await real(question, *rest)
        return replace(episode, reward=float("nan")) if question.family == "code" else episode

    monkeypatch.setattr(module, "play", play)
    with pytest.raises(UserError, match="start again to resume"):
        list(training(tmp_path))


def test_if_all_validation_is_lost_the_log_says_nothing(tmp_path, monkeypatch):
    pool = ScriptedPool(lambda agent, question: question in wanted)
    t = training(tmp_path, pool)
    wanted = {q.prompt for q in t.validation}
    assert t.validate(np.zeros(t.coordinator.n)) == (None, None)
    assert [g.validation for g in t] == [None] * 4
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_neither_stop_nor_break_a_run(tmp_path, monkeypatch, reward):
    monkeypatch.setattr(module, "play", lambda q, *_: ended(q, reward))
    preset = replace(PRESET, generations=30, validate_every=30)
    log = list(training(tmp_path, preset=preset))
    assert len(log) == 30 and {g.reward for g in log} == {reward}
    theta, _ = read_checkpoint(tmp_path / "theta.safetensors")
    assert np.isfinite(theta).all() and np.isfinite(log[-1].sigma)


async def ended(question, reward):
    return Episode(question, (), "", False, reward)


def test_mean_reward():
    def episodes(*rewards):
        return [Episode(QUESTION, (), "", False, r) for r in rewards]

    mean, se, lost = mean_reward(episodes(1.0, None, 0.0, 1.0))
    assert (mean, lost) == (pytest.approx(2 / 3), 1) and se == pytest.approx(np.std([1, 0, 1], ddof=1) / 3**0.5)
    assert mean_reward(episodes(1.0)) == (1.0, 0.0, 0)
    assert np.isnan(mean_reward(episodes(None))[0]) and mean_reward(episodes(None, None))[2] == 2


def by_hand(t, theta, question, draws):
    """One episode written down from the paper, without the loop, the batches and the router of the code."""
    backbone, L = t.coordinator.backbone, len(t.pool.names)
    delta, w = theta[: t.coordinator.n_svf], theta[t.coordinator.n_svf :].reshape(L + 3, -1)
    turns, answer, labels = (), None, ["Worker", "Thinker", "Verifier"]
    for u_agent, u_role in draws:
        text = router_text(Transcript(question.prompt, turns))
        h = backbone.features(backbone.hidden([text], delta[None]))[0].double().numpy()
        logits = w @ h / len(h) ** 0.5
        choices = []
        for z, u in ((logits[:L], u_agent), (logits[L:], u_role)):
            p = np.exp(z) / np.exp(z).sum()
            choices.append(next((i for i, c in enumerate(np.cumsum(p)) if u < c), len(p) - 1))
        agent, role = choices
        label = labels[role]
        said = {"Thinker": "a plan", "Worker": answer_of(question.prompt) if agent == 0 else "no idea"}.get(label)
        if label == "Verifier":
            said = "ACCEPT" if agent == 1 or answer == answer_of(question.prompt) else "REVISE"
        turns += (Turn(agent, Role(role), Reply(said)),)
        if label == "Worker":
            answer = said
        if label == "Verifier" and answer is not None and said == "ACCEPT":
            break
    return float(answer == question.answer)


def test_fitness_equals_an_independent_computation(tmp_path):
    t = training(tmp_path, seed=5, preset=replace(PRESET, common_draws=False))
    rng = np.random.default_rng(0)
    thetas = 3 * rng.standard_normal((8, t.coordinator.n)) * t.coordinator.stds(1, 0.1)
    fitness, _ = t.evaluate(thetas, generation=7)
    asked = draw_questions(t.train, 4, 5, 7, 0, 1)
    wanted = [
        np.mean([by_hand(t, theta, q, uniforms(5, 5, 7, c + 1, 2, i)) for i, q in enumerate(asked)])
        for c, theta in enumerate(thetas)
    ]
    assert fitness.tolist() == wanted and len(set(wanted)) > 1


# ---------------------------------------------------------------- questions and draws


class Spy:
    """Stands for `play` in a run: who was asked what, and with which numbers."""

    def __init__(self, monkeypatch, m):
        self.m, self.asked, self.draws = m, [], []
        monkeypatch.setattr(module, "play", self.play)
        monkeypatch.setattr(Router, "decide", lambda router, candidate, draws: (candidate, draws))

    def play(self, question, decide, pool, rules, grade):
        self.asked.append((decide[0], question.prompt))
        self.draws.append((decide[0], decide[1].tobytes()))
        return ended(question, 0.0)

    def by_candidate(self, seen):
        return [[x for c, x in seen if c == candidate] for candidate in range(3)]


@pytest.mark.parametrize("common_questions", [True, False])
@pytest.mark.parametrize("common_draws", [True, False])
def test_the_switches_share_questions_and_draws(monkeypatch, common_questions, common_draws):
    preset = replace(
        PRESET, common_questions=common_questions, common_draws=common_draws, episodes_per_candidate=8,
        train_per_family=100,
    )  # fmt: skip
    t = training("nowhere", preset=preset)
    seen = []
    for generation in (0, 1):
        spy = Spy(monkeypatch, 8)
        t.evaluate(np.zeros((3, t.coordinator.n)), generation)
        assert [c for c, _ in spy.asked] == [0] * 8 + [1] * 8 + [2] * 8
        for what, common in ((spy.asked, common_questions), (spy.draws, common_draws)):
            first, *others = spy.by_candidate(what)
            assert all((other == first) is common for other in others)
        assert len({d for _, d in spy.draws}) == (8 if common_draws else 24)  # no two episodes of a candidate
        seen.append((spy.asked, spy.draws))
    assert seen[0][0] != seen[1][0] and seen[0][1] != seen[1][1]


def test_training_questions_take_the_families_in_turn_and_the_training_split(monkeypatch):
    t = training("nowhere")
    assert [[q.family for q in pool] for pool in t.train] == [[f] * 12 for f in FAMILIES]
    assert {q.split for pool in t.train for q in pool} == {"train"}
    assert {q.split for q in t.validation} == {"validation"}
    chosen = draw_questions(t.train, 10, 3)
    first = FAMILIES.index(chosen[0].family)
    assert [q.family for q in chosen] == [FAMILIES[(first + i) % 4] for i in range(10)]
    starts = {draw_questions(t.train, 1, 0, s)[0].family for s in range(40)}
    assert starts == set(FAMILIES)
    drawn = {q.prompt for s in range(60) for q in draw_questions(t.train, 4, 1, s)}
    assert drawn == {q.prompt for pool in t.train for q in pool}


def test_play_policy_is_play_with_its_draws():
    t = training("nowhere")
    asked = questions("code", "train", 6, 0)
    theta = np.random.default_rng(1).standard_normal(t.coordinator.n) * t.coordinator.stds(3, 0.1)
    episodes = play_policy(t.coordinator, theta, asked, t.pool, t.preset, 9)
    assert episodes == play_policy(t.coordinator, theta, asked, t.pool, t.preset, 9)
    assert episodes[2] != play_policy(t.coordinator, theta, asked, t.pool, t.preset, 10)[2]
    for i, episode in enumerate(episodes):
        assert episode.reward == by_hand(t, theta, asked[i], uniforms(5, 9, i))
        chosen = [(turn.agent, turn.role) for turn in episode.turns]
        again = run(play(asked[i], fixed(chosen), t.pool, t.preset.rules)) if len(chosen) == 5 else None
        assert again is None or again.reward == episode.reward


# ---------------------------------------------------------------- folders that are not this run's


@pytest.mark.parametrize(
    "change, names",
    [
        ({"seed": 2}, ["seed (1, not 2)"]),
        ({"preset": replace(PRESET, sigma0=0.25, generations=5)}, ["preset generations (4, not 5)", "preset sigma0"]),
        ({"matrices": "none"}, ["coordinator matrices (paper, not none)"]),
        ({"d": 8}, ["coordinator n "]),
    ],
)
def test_a_run_with_other_settings_is_refused(whole, change, names):
    folder, _ = whole
    before = contents(folder)
    with pytest.raises(UserError, match="choose another --out or the same settings") as caught:
        list(training(folder, **change))
    assert all(name in str(caught.value) for name in names) and str(folder) in str(caught.value)
    assert contents(folder) == before


def test_another_pool_or_language_model_is_refused(whole):
    folder, _ = whole
    pool = ScriptedPool()
    pool.identity = "other"
    with pytest.raises(UserError, match=r"coordinator pool \(scripted, not other\)"):
        list(training(folder, pool))
    t = training(folder)
    t.config["coordinator"] = coordinator(2, seed=3).identity("scripted")
    with pytest.raises(UserError, match="coordinator backbone"):
        list(t)


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="is not a run folder: choose another --out folder"):
        list(training(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(UserError, match="is not a run folder"):
        list(training(tmp_path / "thesis.tex"))
    assert (tmp_path / "thesis.tex").read_text() == "x"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"3", b"\xff\xfe", None], ids=repr)
def test_a_damaged_config_is_named(tmp_path, damage):
    config = tmp_path / "config.json"
    config.mkdir() if damage is None else config.write_bytes(damage)
    with pytest.raises(UserError, match=r"config\.json is damaged: choose another --out folder"):
        list(training(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"not a pickle",
        lambda content: pickle.dumps({"log": []}),
        lambda content: pickle.dumps({"log": [{"generation": 1}], "timing": [], "strategy": None}),
        lambda content: pickle.dumps(pickle.loads(content) | {"strategy": {}}),
        lambda content: pickle.dumps(pickle.loads(content) | {"config": pickle.loads(content)["config"] | {"seed": 9}}),
    ],
    ids=["truncated", "empty", "foreign", "incomplete", "other fields", "no strategy", "another run's"],
)
def test_a_damaged_checkpoint_is_named_and_deleting_it_begins_again(whole, tmp_path, damage):
    folder, log = whole
    next(iter(training(tmp_path)))
    checkpoint = tmp_path / "checkpoint.pkl"
    checkpoint.write_bytes(damage(checkpoint.read_bytes()))
    with pytest.raises(UserError, match=r"checkpoint\.pkl is damaged \(.+\): delete it to begin this run again"):
        list(training(tmp_path))
    checkpoint.unlink()
    assert list(training(tmp_path)) == log


class Calls:
    """Pickled, it is a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def by_name(module, name, *args):
    """A pickle of protocol 4 that calls module.name, which may have dots, with args."""
    strings = b"".join(b"\x8c" + bytes([len(s)]) + s.encode() for s in (module, name))
    return b"\x80\x04" + strings + b"\x93(" + b"".join(b"\x8c" + bytes([len(a)]) + a.encode() for a in args) + b"tR."


@pytest.mark.parametrize(
    "content",
    [
        lambda mark: pickle.dumps(Calls(os.mkdir, mark)),
        lambda mark: pickle.dumps({"log": [], "strategy": Calls(os.mkdir, mark)}),
        lambda mark: pickle.dumps(Calls(os.mkdir, mark), protocol=0),
        lambda mark: pickle.dumps(Calls(eval, f"__import__('os').mkdir({mark!r})")),
        lambda mark: pickle.dumps(Calls(np.save, mark + ".npy", [1])),
        lambda mark: by_name("cma.evolution_strategy", "os.mkdir", mark),
        lambda mark: by_name("cma.utilities.utils", "os.mkdir", mark),
        lambda mark: by_name("cma", "evolution_strategy.os.mkdir", mark),
        lambda mark: by_name("numpy.linalg", "eigh.__globals__", mark),
        lambda mark: by_name("numpy.testing", "runstring", f"open({mark!r}, 'w')"),
        lambda mark: by_name("trinity_mini.files", "os.mkdir", mark),
        lambda mark: by_name("trinity_mini.pycma_strategy", "np.save", mark),
        lambda mark: by_name("trinity_mini.files", "write_atomically", mark),
        lambda mark: by_name("cma.evolution_strategy", "exec", f"open({mark!r}, 'w')"),
        lambda mark: by_name("cmax", "x", mark),
    ],
)
def test_a_checkpoint_of_somebody_else_calls_nothing(tmp_path, content):
    folder, mark = tmp_path / "run", tmp_path / "mark"
    next(iter(training(folder)))
    (folder / "checkpoint.pkl").write_bytes(content(str(mark)))
    with pytest.raises(UserError, match=r"\.pkl is damaged \((UnpicklingError: .+ has no place|AttributeError)"):
        list(training(folder))
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("popsize, n_done", [(6, 1), (12, 3), (0, 2)])
@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_checkpoints_of_every_protocol_and_size_are_read(tmp_path, monkeypatch, popsize, n_done, protocol):
    """What `pickle` does by default changes between versions of Python."""
    real = pickle.dumps
    monkeypatch.setattr(pickle, "dumps", lambda state: real(state, protocol=protocol))
    preset = replace(PRESET, popsize=popsize, episodes_per_candidate=1)
    log = list(training(tmp_path / "whole", preset=preset, matrices="none"))
    for _, _ in zip(range(n_done), training(tmp_path / "left", preset=preset, matrices="none"), strict=False):
        pass
    assert list(training(tmp_path / "left", preset=preset, matrices="none")) == log[n_done:]


@pytest.mark.parametrize("popsize", [None, 2, 3, 4, 5, 8, 34])
@pytest.mark.parametrize("n", [2, 10, 400])  # pycma adapts sigma in another way from 300 on
def test_whatever_a_strategy_holds_is_read_again(n, popsize):
    rng, strategy = np.random.default_rng(0), pycma_strategy(np.zeros(n), 2.0, 1, popsize, np.linspace(0.01, 1, n))
    for _ in range(4):
        thetas = strategy.ask()
        asked = module._Unpickler(io.BytesIO(pickle.dumps(strategy))).load()
        rewards = rng.integers(5, size=len(thetas)) / -4
        for s in (strategy, asked):
            s.tell(thetas, rewards.tolist())
        again = module._Unpickler(io.BytesIO(pickle.dumps(asked))).load()
        np.testing.assert_array_equal(again.result.xfavorite, strategy.result.xfavorite)
        if popsize == 2 and n == 400:
            return  # pycma itself refuses to go on with so few
        strategy = again


def test_what_killed_runs_left_is_swept_at_the_start(whole, tmp_path):
    folder, log = whole
    next(iter(training(tmp_path)))
    for name in (".0123456789abcdef.tmp", ".checkpoint.pkl.4711.tmp"):
        (tmp_path / name).write_bytes(b"half")
    assert list(training(tmp_path)) == log[1:]
    assert contents(tmp_path) == contents(folder)


def test_a_complete_run_writes_its_damaged_log_again(whole, tmp_path):
    folder, log = whole
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "log.jsonl").write_text("", encoding="utf-8")
    (tmp_path / "theta.safetensors").write_bytes(b"")
    assert list(training(tmp_path)) == log[-1:]
    assert contents(tmp_path) == contents(folder)
    (tmp_path / "checkpoint.pkl").write_bytes(b"")
    with pytest.raises(UserError, match="damaged .* choose another --out folder"):
        list(training(tmp_path))


def test_a_full_disk_leaves_the_last_generation(whole, tmp_path, monkeypatch):
    folder, log = whole
    run = iter(training(tmp_path))
    next(run)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left.*free some space"):
        next(run)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    monkeypatch.undo()
    assert list(training(tmp_path)) == log[1:]
    assert contents(tmp_path) == contents(folder)


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="choose another folder"):
        list(training(tmp_path / "file" / "run"))
