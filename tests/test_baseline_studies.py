"""The studies of lesson 09 in their quick forms, and the comparison they rest on."""

import inspect
import json

import numpy as np
import pytest
import scipy.stats

from trinity_mini import baseline_studies
from trinity_mini.baseline_studies import METHODS, STUDIES, SWEEP
from trinity_mini.baseline_tables import settings
from trinity_mini.paired import beyond, paired
from trinity_mini.reply_cache import CachedPool
from trinity_mini.study import MODULES, frame, study

KEYS = {
    "reinforce_sweep": {"budget", "episodes", "J", "validation", "states", "calls"},
    "methods": {"budget", "episodes", "test", "J", "family", "roles", "share"},
    "methods_five_turns": {"budget", "episodes", "test", "argmax", "family", "roles", "share"},
    "gradient_snr": {"point", "estimator", "snr", "cosine", "gain", "best_gain"},
    "winner_map": {"world", "uniform", "method", "tuning", "budget", "seed", "J", "options"},
    "svf_methods": {"budget", "test", "backward", "mean_delta"},
}


@pytest.fixture(scope="module", autouse=True)
def no_cache_of_the_user(tmp_path_factory):
    path = tmp_path_factory.mktemp("replies") / "replies.sqlite"
    with pytest.MonkeyPatch.context() as m:
        m.setattr(baseline_studies, "CachedPool", lambda: CachedPool(path=path))
        baseline_studies._world.cache_clear()
        yield
    baseline_studies._world.cache_clear()


@pytest.mark.parametrize("name", STUDIES)
def test_the_quick_form_gives_rows(name):
    assert MODULES[name] == "baseline_studies" and study(name).name == name
    rows = [row for job in STUDIES[name].quick for row in STUDIES[name].run(job)]
    assert rows and {k for row in rows for k in row} >= KEYS[name]
    json.dumps(rows, allow_nan=False)
    limits = [max(job["budgets"]) for job in STUDIES[name].quick if "budgets" in job]
    assert all(row["episodes"] <= max(limits) for row in rows if "episodes" in row)
    for row in rows:
        for key in ("J", "test", "share", "reward", "uniform"):
            assert 0 <= row.get(key, 0) <= 1


def test_jobs_differ_and_seeds_are_enough():
    for s in STUDIES.values():
        assert len({json.dumps(j, sort_keys=True) for j in s.jobs}) == len(s.jobs)
    assert len({j["seed"] for j in STUDIES["methods"].jobs}) >= 10
    assert len({j["seed"] for j in STUDIES["reinforce_sweep"].jobs}) >= 4
    tuning = {j["seed"] for j in STUDIES["reinforce_sweep"].jobs}
    assert not tuning & {j["seed"] for j in STUDIES["methods"].jobs}
    assert {j["method"] for j in STUDIES["methods"].jobs} == set(METHODS)
    options = [json.dumps([m, o]) for m, (_, tried) in SWEEP.items() for o in tried]
    assert len(set(options)) == len(options)


TUNED = {n for n in METHODS if ", tuned" in n or n.startswith("SFT") and n in SWEEP}


@pytest.mark.parametrize("name", sorted(TUNED))
def test_what_is_called_tuned_is_what_the_sweep_chose(name):
    base, _, budget = name.replace(", tuned", "|").partition("|")
    table = settings(frame("reinforce_sweep"))
    table = table[table.method == base]
    budgets = {"for 3 K": [3_000], "for 33 K": [32_640], "": sorted(table.budget.unique())}[budget.strip()]
    assert base in SWEEP and set(budgets) <= set(table.budget)
    method, tried = SWEEP[base]
    defaults = {k: p.default for k, p in inspect.signature(method).parameters.items()}
    mine = defaults | METHODS[name].keywords
    assert METHODS[name].func is method
    for b in budgets:
        found = table[table.budget == b]
        assert len(found) == len(tried)
        best = found.loc[found["mean"].idxmax()]
        assert found["mean"].nlargest(2).diff().iloc[-1] < 0  # no tie
        assert {k: mine[k] for k in tried[0]} == {k: best[k] for k in tried[0]}, f"the sweep's choice at {b}"


def test_every_tuning_of_the_sweep_is_among_the_methods():
    """A method has one tuning for each budget at which the sweep chose another setting."""
    for base in SWEEP:
        mine = {n for n in TUNED if n == base or n.startswith(f"{base}, tuned")}
        assert mine in ({f"{base}, tuned for 3 K", f"{base}, tuned for 33 K"}, {f"{base}, tuned"}, {base}), base


def test_nobody_wins_inside_two_standard_errors_or_without_a_t_test():
    rng = np.random.default_rng(1)
    x = rng.normal(size=10)
    assert paired(x + 1, x)["winner"] == "a" and paired(x, x + 1)["winner"] == "b"
    assert paired([0.1, -0.1, 0.2], [0, 0, 0])["winner"] is None
    for n in (3, 4, 10):
        y = rng.normal(0.8, 1, n)
        found, test = paired(y, np.zeros(n)), scipy.stats.ttest_1samp(y, 0)
        assert found["p"] == pytest.approx(test.pvalue) and found["se"] == pytest.approx(scipy.stats.sem(y))
        assert found["effect"] == pytest.approx(y.mean() / y.std(ddof=1)) and found["n"] == n
        both = abs(y.mean()) > 2 * found["se"] and test.pvalue <= 0.05
        assert (found["winner"] is not None) == both
    assert not beyond(2.5, 1.0, 4) and beyond(2.5, 1.0, 10) and not beyond(1.99, 1.0, 1000)
    assert paired([1, 1], [0, 0]) == {"difference": 1, "se": 0, "n": 2, "p": 0, "effect": np.inf, "winner": "a"}
    assert paired([1, 1], [1, 1])["winner"] is None
    with pytest.raises(ValueError, match="standard error"):
        paired([1], [0])


def test_pairs_are_finite_and_of_one_length():
    for a, b in (([1, 2, 3], [1]), ([[1, 2], [3, 4]], [[1, 2], [3, 4]]), ([1, np.nan, 2], [0, 0, 0])):
        with pytest.raises(ValueError, match="pairs are wanted"):
            paired(a, b)
    found = paired([0.1 + 0.2] * 5, [0.3] * 5)
    assert found["winner"] is None and found["difference"] == 0
