"""The recipe of the shipped models, and the command that follows it."""

import json
from dataclasses import asdict
from functools import partial

import numpy as np
import pandas as pd
import pytest

from trinity_mini import __main__ as cli
from trinity_mini import evaluation, make_pool, pool_training, slm_training
from trinity_mini.files import DATA, UserError
from trinity_mini.make_pool import STEPS, TEXTS, make
from trinity_mini.pool import EmbeddedPool
from trinity_mini.pool_training import SPECIALITIES
from trinity_mini.roles import Role
from trinity_mini.skills import skill_table
from trinity_mini.tasks import FAMILIES, HARD_FAMILIES, questions
from trinity_mini.templates import prompt_text
from trinity_mini.tiny_lm import TinyConfig


@pytest.fixture
def small(monkeypatch):
    """The whole recipe on models and tables of no size."""
    monkeypatch.setattr(pool_training, "TinyConfig", partial(TinyConfig, d=16, layers=1, heads=2, ff=16))
    monkeypatch.setattr(slm_training, "SHAPE", TinyConfig(d=16, layers=2, heads=2, ff=16))
    for module in (pool_training, slm_training):
        monkeypatch.setattr(module, "ROWS", 2)
    monkeypatch.setattr("trinity_mini.pool.MAX_REPLY", 3)
    monkeypatch.setattr(make_pool, "TEXTS", 20)
    monkeypatch.setattr(make_pool, "skill_table", partial(skill_table, n=2))
    monkeypatch.setattr(evaluation, "search_chain", one_worker)


def one_worker(pool, asked, agents):
    return ((next(iter(agents)), Role.WORKER),), 0.0


def arguments(tmp_path, *more):
    folders = [f"--{name}={tmp_path / name}" for name in ("out", "slm", "state")]
    return ["make-pool", *folders, "--steps", "2", *more]


def test_the_command_makes_all_files_and_resumes(small, tmp_path, capsys):
    assert cli.main(arguments(tmp_path, f"--json={tmp_path / 'rows.json'}")) == 0
    table = pd.read_csv(tmp_path / "out" / "skills.csv")
    assert "\n".join(make_pool.show(table).splitlines()[2:]) in capsys.readouterr().out
    made = {p.name for p in (tmp_path / "out").iterdir()}
    models = {f"{a}.{end}" for a in SPECIALITIES for end in ("json", "safetensors")}
    assert made == models | {"skills.csv", "chains.json"}
    assert {p.name for p in (tmp_path / "slm").iterdir()} == {"slm.json", "slm.safetensors"}
    assert {p.name for p in (tmp_path / "state").iterdir()} == {f"{name}.pt" for name in STEPS}
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == len(table) and {r["unit"] for r in rows} == {"share right"}
    assert all(isinstance(r["n"], int) for r in rows)
    before = {p: p.read_bytes() for p in (tmp_path / "out").glob("*.safetensors")}
    assert cli.main(arguments(tmp_path)) == 0
    assert {p: p.read_bytes() for p in before} == before


def test_one_agent_alone(small, tmp_path):
    assert cli.main(arguments(tmp_path, "--agent", "cy")) == 0
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {"cy.json", "cy.safetensors", "cy.pt", "skills.csv"}
    assert set(pd.read_csv(tmp_path / "out" / "skills.csv")["agent"]) == {"cy"}


def test_another_seed_does_not_go_on_from_this_one(small, tmp_path, capsys):
    assert cli.main(arguments(tmp_path, "--agent", "cy")) == 0
    assert cli.main(arguments(tmp_path, "--agent", "cy", "--seed", "2")) == 2
    assert "cy.pt is of another run" in capsys.readouterr().err


def test_an_unknown_agent_is_named_before_anything_is_trained(tmp_path):
    with pytest.raises(UserError, match="unknown agent 'zoe': choose from ada"):
        make(tmp_path / "a", tmp_path / "b", tmp_path / "c", ["ada", "zoe"], 1, 1)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- the shipped files


def test_the_recipe_is_the_one_of_the_shipped_files():
    pool = EmbeddedPool()
    assert pool.names == sorted(SPECIALITIES) and set(STEPS) == {*SPECIALITIES, "slm"}
    slm = json.loads((DATA / "coordinator" / "slm.json").read_text())
    assert {c["name"]: c["steps"] for c in [*pool.cards, slm]} == STEPS
    assert (slm["texts"], slm["pool"]) == (TEXTS, pool.identity)
    assert {c["seed"] for c in pool.cards} == {1}


def test_the_mixture_is_the_one_of_the_shipped_files():
    """Otherwise make-pool trains other agents than those shipped."""
    for card in EmbeddedPool().cards:
        assert card["speciality"] == json.loads(json.dumps(asdict(SPECIALITIES[card["name"]]))), card["name"]


def test_the_skill_table_is_of_the_shipped_pool():
    """Two columns measured again, on the very same questions."""
    table = pd.read_csv(DATA / "tiny_pool" / "skills.csv").set_index(["agent", "family", "kind", "role"])["value"]
    pool = EmbeddedPool()
    assert set(table.index.get_level_values("agent")) == set(pool.names)
    assert set(table.index.get_level_values("family")) == {*FAMILIES, *HARD_FAMILIES}
    asked = questions("math", "test", 200, 0)
    for agent, name in enumerate(pool.names):
        said = pool.speak([(agent, prompt_text(Role.WORKER, q.prompt, q.plan)) for q in asked])
        right = np.mean([s == q.answer for s, q in zip(said, asked, strict=True)])
        assert table[name, "math", "all", "worker+plan"] == pytest.approx(right, abs=1e-4)


def test_every_skill_of_the_shipped_pool_has_an_expert_and_no_agent_is_good_at_all():
    table = pd.read_csv(DATA / "tiny_pool" / "skills.csv")
    table = table[(table["kind"] != "all") & ~table["family"].str.endswith("-hard")]
    table = table[~((table["family"] == "know") & (table["role"] == "thinker"))]
    for (kind, role), part in table.groupby(["kind", "role"]):
        if role in ("thinker", "worker+plan") or kind in ("capital", "symbol", "currency", "calling"):
            assert part["value"].max() > 0.8, (kind, role)
    plans = table[table["role"] == "thinker"].pivot_table(index="agent", columns="kind", values="value")
    assert (plans.min(axis=1) < 0.2).all()
