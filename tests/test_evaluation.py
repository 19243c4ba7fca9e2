"""Tables of accuracies, against pandas and scipy; baselines and their chains on a scripted pool."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bernoulli, sem
from world import LetterPool

from trinity_mini import evaluation
from trinity_mini.chains import play_chain
from trinity_mini.episode import Episode, Turn
from trinity_mini.evaluation import (
    as_chain,
    baselines,
    episode_records,
    find_chains,
    load_chains,
    records,
    summary,
    wide,
)
from trinity_mini.files import UserError
from trinity_mini.pool import EmbeddedPool, Reply
from trinity_mini.roles import Role
from trinity_mini.tasks import FAMILIES, KINDS, Question, question_set


@pytest.fixture(scope="module")
def asked():
    return question_set("test", 8, 3)


def random_records(asked, seed=0, names=("b", "a")):
    rng = np.random.default_rng(seed)
    frames = [records(n, asked, (rng.random(len(asked)) < 0.4), rng.integers(1, 6, len(asked)), 2) for n in names]
    return pd.concat(frames, ignore_index=True)


# ---------------------------------------------------------------- summary


def test_records_are_a_row_a_question(asked):
    frame = records("x", asked, [True] + [False] * 31, 1, range(32))
    assert list(frame.columns) == ["name", "family", "question", "reward", "turns", "calls"]
    assert frame["question"].tolist() == [q.id for q in asked] and frame["reward"].sum() == 1.0
    assert frame["turns"].tolist() == [1.0] * 32 and frame["calls"].tolist() == list(range(32))
    assert records("x", [], [], 1, 1).empty
    with pytest.raises(ValueError):
        records("x", asked, [True], 1, 1)


def test_summary_is_mean_and_binomial_error(asked):
    frame = random_records(asked)
    table = summary(frame)
    assert list(table.columns) == ["name", "family", "value", "se", "n", "turns", "calls"]
    assert list(dict.fromkeys(table["name"])) == ["b", "a"]
    assert len(table) == 2 * 5
    for row in table.itertuples():
        part = frame[(frame["name"] == row.name) & ((frame["family"] == row.family) | (row.family == "all"))]
        assert row.n == len(part) and row.value == pytest.approx(part["reward"].mean())
        assert row.se == pytest.approx(bernoulli(row.value).std() / len(part) ** 0.5)
        assert row.se == pytest.approx(part["reward"].sem(ddof=0))
        assert row.turns == pytest.approx(part["turns"].mean()) and row.calls == 2.0


def test_the_error_of_grades_between_0_and_1_is_that_of_the_sample(asked):
    """A tenth more or less is no coin: the binomial error would be many times too large."""
    frame = random_records(asked, names=["a", "b"])
    rng = np.random.default_rng(4)
    graded = (frame["name"] == "b") & frame["family"].isin(["math", "know"])
    frame.loc[graded, "reward"] = rng.choice([0.7, 0.8, 0.9], graded.sum())
    frame.loc[graded.idxmax(), "reward"] = np.nan
    table = summary(frame).set_index(["name", "family"])
    for (name, family), row in table.iterrows():
        kept = frame[(frame["name"] == name) & ((frame["family"] == family) | (family == "all"))]["reward"].dropna()
        binary = name == "a" or family in ("code", "reason")
        assert row.n == len(kept) and row.se == pytest.approx(sem(kept, ddof=0 if binary else 1))
    assert table.loc[("b", "math"), "se"] < 0.05


@pytest.mark.parametrize(
    "rewards, se", [([0.5], np.nan), ([1.0], 0.0), ([np.nan, 0.25, 0.75], 0.25), ([np.nan], np.nan)]
)
def test_the_error_of_few_grades(asked, rewards, se):
    table = summary(records("x", asked[: len(rewards)], rewards, 1, 1))
    assert table["se"].tolist() == pytest.approx([se] * 2, nan_ok=True)
    assert wide(table)


def test_lost_episodes_are_left_out_not_scored(asked):
    frame = random_records(asked, names=["a"])
    frame.loc[frame["family"] == "code", "reward"] = np.nan
    frame.loc[0, "reward"] = np.nan
    table = summary(frame).set_index("family")
    kept = frame["reward"].dropna()
    assert table.loc["all", "n"] == len(kept) == 23 and table.loc["all", "value"] == pytest.approx(kept.mean())
    assert table.loc["math", "n"] == 7 and table.loc["code", "n"] == 0 and np.isnan(table.loc["code", "value"])


def test_records_of_episodes():
    turn = Turn(0, Role.WORKER, Reply("x"))
    question = Question("math", "infix", "2", "2", "")
    frame = episode_records(
        "x",
        [Episode(question, (turn, turn), "x", False, 0.0), Episode(question, (turn,), None, False, None)],
    )
    assert frame["turns"].tolist() == [2, 1] and frame["reward"].isna().tolist() == [False, True]


# ---------------------------------------------------------------- wide


def test_wide_is_a_line_a_name_and_a_column_a_family(asked):
    table = summary(random_records(asked))
    lines = wide(table).splitlines()
    assert lines[0].split() == [*FAMILIES, "all", "turns"]
    assert [line.split()[0] for line in lines[1:]] == ["b", "a"]
    for line, name in zip(lines[1:], ["b", "a"], strict=True):
        part = table[table["name"] == name].set_index("family")
        cells = line[34:].replace(" ± ", "±").split()
        wanted = [f"{part.value[f]:.2f}±{part.se[f]:.2f}" for f in (*FAMILIES, "all")]
        assert cells == [*wanted, f"{part.turns['all']:.1f}"]
    assert len({len(line) for line in lines}) == 1


def test_wide_without_turns_from_plain_rows(asked):
    table = summary(random_records(asked))[["name", "family", "value", "se", "n"]]
    rows = json.loads(table.to_json(orient="records", double_precision=15))
    assert wide(pd.DataFrame(rows)) == wide(table)
    assert wide(table).splitlines()[0].split() == [*FAMILIES, "all"]


def test_wide_orders_families_and_leaves_gaps():
    rows = [("x", "reason-hard"), ("x", "math"), ("a name of more than thirty-four characters", "know")]
    table = pd.DataFrame([{"name": n, "family": f, "value": 1.0, "se": 0.0, "n": 1} for n, f in rows])
    lines = wide(table).splitlines()
    assert lines[0].split() == ["math", "know", "reason-hard"]
    at = lines[0].index("know") + 4
    assert lines[2].index("1.00 ± 0.00") + 11 == at and len(lines[2]) == at
    assert lines[1].count("1.00") == 2


def test_wide_shows_no_turns_where_there_are_none(asked):
    table = summary(records("oracle", asked, [1] * 32, np.nan, np.nan))
    assert "nan" not in wide(table) and wide(table).splitlines()[1].endswith("1.00 ± 0.00")


# ---------------------------------------------------------------- chains and baselines


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    pool = LetterPool(tmp_path_factory.mktemp("letters"), n_agents=2)
    (pool.folder / "chains.json").write_text(json.dumps(find_chains(pool, per_kind=6)))
    return pool


def test_chains_are_found_on_training_questions(pool, monkeypatch):
    searched = []

    def search(pool, asked, agents, **_):
        searched.append((list(agents), asked))
        return ((agents[0], Role.WORKER),), 0.25

    monkeypatch.setattr(evaluation, "search_chain", search)
    found = json.loads(json.dumps(find_chains(pool, per_kind=4)))
    assert {q.split for _, asked in searched for q in asked} == {"train"}
    assert found["pool"] == pool.identity and set(found["alone"]) == set(pool.names)
    assert set(found["family"]) == set(FAMILIES) and set(found["kind"]) == {k for f in FAMILIES for k in KINDS[f]}
    assert found["alone"]["agent1"] == {"chain": [[1, 0]], "train": 0.25}
    assert as_chain(found["alone"]["agent1"]) == ((1, Role.WORKER),)
    agents = [a for a, _ in searched]
    assert agents == [[0], [1]] + [[0, 1]] * (4 + 10)
    assert {q.family for q in searched[0][1]} == set(FAMILIES)
    assert all(len({q.kind for q in asked}) == 1 and len(asked) == 4 for _, asked in searched[6:])


def test_chains_can_be_found_at_full_size(pool, monkeypatch):
    """As many questions as asked for by default exist, of every kind."""
    monkeypatch.setattr(evaluation, "search_chain", lambda pool, asked, agents: (((0, Role.WORKER),), len(asked)))
    assert {e["train"] for e in find_chains(pool)["kind"].values()} == {30}


def test_chains_of_the_same_pool_are_read_others_made_again(pool, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "find_chains", lambda pool: {"pool": pool.identity, "made": True})
    assert "made" not in load_chains(pool)
    other = LetterPool(tmp_path)
    assert load_chains(other)["made"]
    assert json.loads((tmp_path / "chains.json").read_text())["made"]
    (tmp_path / "chains.json").write_text(json.dumps({"pool": "another"}))
    assert load_chains(other)["made"]


@pytest.mark.parametrize("damage", ["", "{", "[]", "3", "{}"])
def test_damaged_chains_name_the_remedy(tmp_path, damage):
    (tmp_path / "chains.json").write_text(damage)
    with pytest.raises(UserError, match=r"chains\.json is damaged: delete it"):
        load_chains(LetterPool(tmp_path))


def check_baselines(frame, pool, asked):
    """One record a name and question, and the values counted again."""
    assert not frame.duplicated(["name", "question"]).any()
    assert frame.groupby("name", sort=False)["question"].apply(list).map(lambda ids: ids == [q.id for q in asked]).all()
    assert set(frame["reward"]) <= {0.0, 1.0}
    rewards = {name: part["reward"].to_numpy() for name, part in frame.groupby("name")}
    chains = load_chains(pool)
    for name in pool.names:
        alone = as_chain(chains["alone"][name])
        assert (rewards[f"{name}, five turns, all roles"] == play_chain(pool, alone, asked)).all()
        assert (rewards[f"{name}, one call"] == play_chain(pool, ((pool.names.index(name), Role.WORKER),), asked)).all()
    oracle = rewards["oracle over those chains"]
    for name, group, key in (
        ("static chain per family", "family", lambda q: q.family),
        ("fixed chain per kind (ceiling)", "kind", lambda q: q.kind),
    ):
        one_by_one = [play_chain(pool, as_chain(chains[group][key(q)]), [q])[0] for q in asked]
        assert rewards[name].tolist() == one_by_one and (rewards[name] <= oracle).all()
        lengths = [len(chains[group][key(q)]["chain"]) for q in asked]
        assert frame[frame["name"] == name]["turns"].tolist() == lengths


def test_baselines(pool, asked):
    frame = baselines(pool, asked)
    check_baselines(frame, pool, asked)
    assert set(frame["name"]) == {
        "agent0, one call", "agent1, one call", "agent0, five turns, all roles", "agent1, five turns, all roles",
        "majority vote", "static chain per family", "fixed chain per kind (ceiling)", "oracle over those chains",
    }  # fmt: skip
    assert frame[frame["name"] == "majority vote"]["calls"].unique().tolist() == [2.0]


def test_the_vote_is_the_most_frequent_answer_ties_to_the_first(pool, monkeypatch):
    monkeypatch.setattr(evaluation, "play_chain", lambda pool, chain, asked: [0.0] * len(asked))
    said = ["a", "b", "b"]

    class Voters(LetterPool):
        def speak(self, requests):
            return [said[a] for a, _ in requests]

    voters = Voters(pool.folder, n_agents=3)
    voters.identity = pool.identity
    q = [Question("math", "infix", "1", "b", "")]
    for lines, right in (("abb", 1.0), ("abc", 0.0), ("bac", 1.0), ([" b", "b ", "a"], 1.0)):
        said[:] = lines
        frame = baselines(voters, q)
        assert frame[frame["name"] == "majority vote"]["reward"].tolist() == [right], lines


def test_baselines_of_the_shipped_pool():
    pool = EmbeddedPool()
    assert (pool.folder / "chains.json").exists() and json.loads((pool.folder / "chains.json").read_text())["pool"] == (
        pool.identity
    )
    asked = question_set("test", 20, 1)
    frame = baselines(pool, asked)
    check_baselines(frame, pool, asked)
    values = summary(frame).set_index(["name", "family"])["value"]
    best_alone = max(values[f"{name}, five turns, all roles", "all"] for name in pool.names)
    assert values["fixed chain per kind (ceiling)", "all"] > best_alone + 0.2  # there is something to coordinate


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: f.pop("kind"),
        lambda f: f["family"].clear(),
        lambda f: f["alone"]["agent0"].update(chain=[[9, 0]]),
        lambda f: f["alone"]["agent0"].update(chain=[[0, 7]]),
        lambda f: f["alone"]["agent0"].update(chain="xx"),
        lambda f: f.update(alone=[1]),
        lambda f: f["alone"].update(agent0=3),
    ],
)
def test_chains_damaged_inside_are_named(pool, damage):
    path = pool.folder / "chains.json"
    kept = path.read_bytes()
    found = json.loads(kept)
    damage(found)
    try:
        path.write_text(json.dumps(found), encoding="utf-8")
        with pytest.raises(UserError, match="chains.json is damaged: delete it"):
            load_chains(pool)
    finally:
        path.write_bytes(kept)
    assert load_chains(pool)["pool"] == pool.identity
