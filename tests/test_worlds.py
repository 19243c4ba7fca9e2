"""What a preset stands for, and the commands over pool files: the tiny agents through litellm, as a paid pool."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmark_items import write_all

from trinity_mini import __main__ as cli
from trinity_mini import commands, llm_commands, presets, worlds
from trinity_mini.backbone import Backbone
from trinity_mini.episode import Rules, fixed, play, run
from trinity_mini.files import DATA, ROOT, UserError
from trinity_mini.llm_agents import read_pool_file
from trinity_mini.llm_pool import LLMPool
from trinity_mini.pool import EmbeddedPool
from trinity_mini.presets import PRESETS, Preset
from trinity_mini.roles import Role
from trinity_mini.task_sets import benchmark_sets, embedded_tasks
from trinity_mini.training import TrainingRun

SMALL = Preset(
    "small", generations=2, episodes_per_candidate=4, popsize=3, train_per_family=6, validation_per_family=2,
    validate_every=1, pool="data/pools/tiny.toml",
)  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(PRESETS, "small", SMALL)
    return SMALL


# ---- pools ------------------------------------------------------------------------------------------------


def test_a_run_over_litellm_is_the_run_over_the_embedded_pool(tmp_path, small):
    """Same thetas, same rewards: the whole way of a paid call changes nothing."""
    with worlds.world("small", tmp_path / "litellm") as w:
        found = list(TrainingRun(tmp_path / "litellm", w.coordinator, w.pool, w.preset, 1, w.tasks))
    pool = EmbeddedPool()
    embedded = TrainingRun(tmp_path / "embedded", w.coordinator, pool, replace(small, pool="embedded"), 1)
    assert found == list(embedded)
    asked = llm_commands.replies(tmp_path / "litellm").stat().st_mtime
    with worlds.world("small", tmp_path / "litellm") as w:  # a finished run asks nothing
        assert list(TrainingRun(tmp_path / "litellm", w.coordinator, w.pool, w.preset, 1, w.tasks)) == found[-1:]
    assert llm_commands.replies(tmp_path / "litellm").stat().st_mtime == asked


def test_a_pool_that_may_cost_money_needs_a_limit(tmp_path):
    agent = '[[agent]]\nname = "a"\nmodel = "openai/x"\napi_base = "http://localhost:1/v1"\n'
    file = tmp_path / "pool.toml"
    file.write_text(agent + "parameters = { max_tokens = 8 }\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"add a table \[budget\]"):
        worlds.limited_pool_file(str(file))
    for extra in ("price_in = 1.0\nprice_out = 0.0\n", "price_in = 0.0\nprice_out = 1.0\n"):
        file.write_text(agent + "parameters = { max_tokens = 8 }\n" + extra, encoding="utf-8")
        with pytest.raises(UserError, match=r"add a table \[budget\]"):
            worlds.limited_pool_file(str(file))
    free = "price_in = 0.0\nprice_out = 0.0\nparameters = { max_tokens = 8 }\n"
    limited = "[budget]\ncalls = 3\n" + agent + "parameters = { max_tokens = 8 }\n"
    for text in (agent + free, limited):
        file.write_text(text, encoding="utf-8")
        worlds.open_pool(worlds.limited_pool_file(str(file)), tmp_path).close()


@pytest.mark.parametrize("path", sorted((DATA / "pools").glob("*.toml")), ids=lambda p: p.stem)
def test_a_shipped_pool_file_opens_once_its_keys_are_set(path, tmp_path, monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "not-a-real-one")
    file = read_pool_file(path)
    assert len({a.name for a in file.agents}) == len(file.agents) >= 4
    with LLMPool(file, tmp_path) as pool:  # also: prices and max_tokens are known where there is a budget
        assert pool.names == [a.name for a in file.agents]


def test_every_presets_parts_exist():
    for p in PRESETS.values():
        assert p.pool == presets.EMBEDDED or worlds.pool_path(p.pool).exists()
        assert p.tasks in (presets.EMBEDDED, presets.BENCHMARKS)
    full = PRESETS["paper"]
    assert (full.popsize, full.episodes_per_candidate, full.generations) == (0, 16, 60)  # paper section 3
    assert len(read_names(full.pool)) == len(read_names(PRESETS["paper-full-power"].pool)) == 7


def read_names(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith("name = ")]


# ---- the states' centre ------------------------------------------------------------------------------------


@pytest.fixture
def other_slm(monkeypatch):
    """A backbone that has no centre of its own yet."""

    def load(name):
        embedded = Backbone.embedded()
        return Backbone(embedded.model, embedded.tokenizer)

    monkeypatch.setattr(worlds, "load_slm", load)
    monkeypatch.setitem(PRESETS, "small", replace(SMALL, slm="another", pool="embedded"))


def test_centre_and_scale_are_measured_once_and_go_with_the_checkpoint(tmp_path, other_slm):
    w = worlds.world("small", tmp_path)
    b = w.coordinator.backbone
    h = b.hidden([b.render(t) for t in worlds.typical(w.tasks, w.pool)]).numpy()
    assert np.allclose(b.centre, h.mean(axis=0), atol=1e-4)
    assert np.isclose(b.scale, np.sqrt(((h - h.mean(axis=0)) ** 2).mean()), rtol=1e-4)
    w.coordinator.save(tmp_path / "theta.safetensors", np.zeros(w.coordinator.n), w.pool.identity)
    again = worlds.world("small", tmp_path / "elsewhere", trained_in=tmp_path)
    assert np.array_equal(again.coordinator.backbone.centre, b.centre)
    again.coordinator.load(tmp_path / "theta.safetensors", w.pool.identity)
    raw = worlds.world("small", tmp_path / "elsewhere", trained_in=tmp_path / "released")
    assert not raw.coordinator.backbone.centre.any() and raw.coordinator.backbone.scale == 1
    with pytest.raises(UserError, match="centre or scale"):
        raw.coordinator.load(tmp_path / "theta.safetensors", w.pool.identity)


@pytest.mark.parametrize("content", ["", "[]", '{"centre": [1, 2], "scale": 1}', '{"scale": 1}', '{"centre": null}'])
def test_a_damaged_centre_names_the_remedy(tmp_path, other_slm, content):
    (tmp_path / worlds.FEATURES).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="delete it, it is then measured again"):
        worlds.world("small", tmp_path)


def test_a_training_starts_in_a_folder_that_holds_only_its_centre(tmp_path, other_slm):
    w = worlds.world("small", tmp_path)
    assert len(list(TrainingRun(tmp_path, w.coordinator, w.pool, w.preset, 1, w.tasks))) == 2


# ---- benchmarks ---------------------------------------------------------------------------------------------


def test_benchmarks_are_trained_on_held_out_and_graded(tmp_path):
    write_all(tmp_path)
    p = replace(SMALL, tasks="math500,mmlu", train_per_family=3, validation_per_family=1)
    tasks = benchmark_sets(p, tmp_path, lambda: None)
    assert [len(family) for family in tasks.train] == [3, 3] and len(tasks.validation) == 2
    trained = {q.id for family in tasks.train for q in family} | {q.id for q in tasks.validation}
    held_out = tasks.test(1, 0, ["math500"])
    assert [q.family for q in held_out] == ["math500"] and not trained & {q.id for q in held_out}
    q = tasks.train[0][0]

    class Knows:
        names, identity = ("one",), "one"

        async def reply(self, agent, messages):
            from trinity_mini.pool import Reply

            return Reply(f"<answer>{q.gold}</answer>")

    episode = run(play(q, fixed([(0, Role.WORKER)]), Knows(), Rules(max_turns=1), tasks.grade))
    assert episode.reward == 1.0
    assert run(tasks.grade(q, "certainly not")) == 0.0


# ---- commands -----------------------------------------------------------------------------------------------


def called(*args):
    try:
        return cli.main([str(a) for a in args])
    except SystemExit as e:
        return e.code


def test_check_estimate_train_ledger(tmp_path, small, capsys, monkeypatch):
    for module in (llm_commands, cli):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    assert called("pool", "check", ROOT / "data/pools/tiny.toml") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[n, "answered"] for n in EmbeddedPool().names]
    assert called("estimate", "--preset", "small", "--pilot", 6, "--out", tmp_path / "pilot", "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)
    totals = {r["name"]: r["value"] for r in rows if r["family"] == "all"}
    assert totals["cost"] == 0 and 40 <= totals["calls"] <= 5 * 40  # 24 of training, 16 of validation
    run_folder = tmp_path / "run"
    assert called("train", "--preset", "small", "--out", run_folder, "--per-family", 1) == 0
    out = capsys.readouterr().out
    assert "ada, one call" in out and "trained coordinator" in out and "pool ledger" in out
    assert called("pool", "ledger", run_folder, "--json", "-") == 0
    ledger = {(r["name"], r["family"]): r["value"] for r in json.loads(capsys.readouterr().out)}
    assert ledger["cost", "all"] == 0 and ledger["calls", "all"] > 40
    assert called("pool", "forget-lost", run_folder) == 0
    assert "lost calls forgotten: 0" in capsys.readouterr().out
    args = ["evaluate", run_folder, "--per-family", 1, "--out", tmp_path / "judged", "--json", tmp_path / "rows"]
    assert called(*args) == 0  # the preset is known from the run
    own = tmp_path / "own.toml"
    own.write_text((ROOT / "data/pools/tiny.toml").read_text(encoding="utf-8"), encoding="utf-8")
    assert called("train", "--preset", "small", "--pool", own, "--out", tmp_path / "2", "--no-evaluate") == 0
    assert worlds.recorded(tmp_path / "2" / "theta.safetensors") == ("small", own)
    assert worlds.recorded(run_folder / "theta.safetensors") == ("small", None)
    assert called("ask", "capital peru", "--checkpoint", tmp_path / "2" / "theta.safetensors") == 0
    own.unlink()
    assert called("evaluate", tmp_path / "2") == 2 and "own.toml" in capsys.readouterr().err
    assert worlds.recorded(ROOT / "data/coordinator/theta.safetensors") == ("mini", None)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["pool", "ledger", "nowhere"], "does not exist: give the folder of a run"),
        (["pool", "check", "nowhere.toml"], "nowhere.toml"),
        (["train", "--preset", "gpu-open", "--root", "nowhere"], "nowhere"),
        (["train", "--pool", "nowhere.toml"], "nowhere.toml"),
        (["load-released", "nowhere.npy", "--slm", "nowhere"], "nowhere"),
        (["bench", "--device", "cuda:99"], "cannot use device"),
    ],
    ids=lambda x: " ".join(x)[:30] if isinstance(x, list) else "",
)
def test_what_is_missing_is_named_with_its_remedy(args, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for module in (worlds, llm_commands, commands):  # where runs/ lies
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(worlds, "pool_path", lambda name: ROOT / name if str(name).startswith("data") else Path(name))
    assert called(*args) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert says in line and "Traceback" not in line
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_checkpoint_of_another_pool_is_taken_only_with_transfer(tmp_path, small, capsys):
    with worlds.world("small", tmp_path / "a") as w:
        theta = np.random.default_rng(0).standard_normal(w.coordinator.n)
        w.coordinator.save(tmp_path / "theta.safetensors", theta, "another pool")
    args = ["evaluate", tmp_path, "--preset", "small", "--per-family", 1, "--out", tmp_path / "b"]
    assert called(*args) == 2 and "another pool" in capsys.readouterr().err
    assert called(*args, "--transfer") == 0


def test_embedded_tasks_are_those_of_the_preset():
    tasks = embedded_tasks(SMALL)
    assert [len(f) for f in tasks.train] == [6] * 4 and len(tasks.validation) == 8
    assert {q.split for f in tasks.train for q in f} == {"train"}
    assert {q.split for q in tasks.test(2, 0, None)} == {"test"}
