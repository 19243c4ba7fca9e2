"""The table of claims: its rules, on recorded rows made up so that the answer is known."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_rel

from trinity_mini import claims as module
from trinity_mini.claims import CLAIMS, QUOTED, Recorded, claims, pair, quoted, said, verdict
from trinity_mini.files import DATA, UserError
from trinity_mini.study import jsonl

EFFECTS = {  # accuracy of a variant minus that of full, and how sure
    "full": (0.0, 0.0), "no Thinker": (-0.7, 0.01), "no Verifier": (0.0, 0.03), "no roles: Workers only": (0.2, 0.01),
    "reads the last token": (-0.1, 0.01), "head: low-rank": (-0.1, 0.01), "head: sparse": (-0.2, 0.01),
    "head: block-diagonal-2": (0.0, 0.02), "head: block-diagonal-n, argmax": (0.1, 0.01),
    **{f"at most {k} turns": (-0.1, 0.01) for k in (2, 3, 4, 6)},
    **{f"one agent, all roles: {a}": (-0.8, 0.01) for a in range(5)},
}  # fmt: skip


def pattern(i):
    """Four values of mean 0 and sample standard deviation 1."""
    x = np.array([-1.0, 1.0, 2.0, -2.0])
    return (x / x.std(ddof=1))[i]


def write(folder, name, rows):
    (folder / f"{name}.jsonl").write_bytes(jsonl({"study": name}, rows))


def ablations():
    rows = []
    for name, (effect, spread) in EFFECTS.items():
        for i in range(4):
            accuracy = 0.9 + 0.05 * pattern(i) + effect + spread * pattern((i + 1) % 4)
            rows.append({"variant": name, "seed": i + 1, "selection": "as trained", "accuracy": accuracy})
            rows.append({"variant": name, "seed": i + 1, "selection": "argmax", "accuracy": accuracy})
    return rows


def emergence(rise=0.5):
    rows = []
    for seed in range(1, 5):
        for generation, bits in ((0, 0.01), (3, 0.01 + rise)):
            rows.append(
                {
                    "what": "generation",
                    "seed": seed,
                    "generation": generation,
                    "mi_most": 2.0,
                    "mi_chance": 0.01,
                    "mi_bits": bits + 0.01 * pattern(seed - 1) * (generation > 0),
                }
            )
        for family in ("math-hard", "code-hard", "reason-hard"):
            rows.append({"what": "transfer", "seed": seed, "to": family, "accuracy": 0.8 + 0.01 * pattern(seed - 1)})
            rows.append({"what": "transfer", "seed": seed, "to": f"{family}, uniform policy", "accuracy": 0.05})
    return rows  # fmt: skip


def evaluation(static=0.8):
    rows = [{"name": f"trained: mini-{s}", "value": 0.95 + 0.01 * pattern(s - 1)} for s in range(1, 5)]
    rows += [
        {"name": "static chain per family", "value": static},
        {"name": "fixed chain per kind (ceiling)", "value": 1},
    ]
    return [{"family": "all", "se": 0.01, "n": 800, "unit": "accuracy"} | r for r in rows]


@pytest.fixture
def folder(tmp_path):
    """The files of lesson 10 made up, those of lessons 08 and 09 as they are."""
    write(tmp_path, "ablations", ablations())
    write(tmp_path, "emergence", emergence())
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluation()), encoding="utf-8")
    for name in ("separability-head", "separability-diagonal", "methods", "winner_map"):
        shutil.copy(DATA / "runs" / f"{name}.jsonl", tmp_path)
    return tmp_path


def test_verdicts_follow_the_numbers(folder):
    table = claims(folder)
    assert list(table.columns) == ["claim", "paper", "here", "holds", "source"]
    assert len(table) == len(CLAIMS) and set(table["holds"]) <= {"yes", "no", "in part", "open"}
    holds = table.set_index("claim")["holds"]
    assert holds["the Thinker is needed"] == "yes"
    assert holds["the Verifier is needed"] == "open"
    assert holds["three roles beat none"] == "no"
    assert holds["the penultimate token beats the last"] == "yes"
    assert holds["the linear head beats the other heads"] == "in part"
    assert holds["a pool beats one agent in all its roles"] == "yes"
    assert holds["more turns help (5 against 2)"] == "yes"
    assert holds["roles emerge"] == "yes" and holds["it transfers to harder questions"] == "yes"
    assert holds["a static choice per task would do"] == "no"
    here = table.set_index("claim")["here"]
    assert "+0.700 ± 0.005 (n = 4)" in here["the Thinker is needed"]
    for text in here:
        assert "n = " in text or "seeds" in text, text
        assert "nan" not in text


def test_the_rule_turns_with_the_numbers(folder):
    write(folder, "emergence", emergence(rise=0.0))
    (folder / "evaluation.json").write_text(json.dumps(evaluation(static=0.99)), encoding="utf-8")
    holds = claims(folder).set_index("claim")["holds"]
    assert holds["roles emerge"] == "open" and holds["a static choice per task would do"] == "yes"
    (folder / "evaluation.json").write_text(json.dumps(evaluation(static=0.951)), encoding="utf-8")
    assert claims(folder).set_index("claim")["holds"]["a static choice per task would do"] == "open"


def methods(tmp_path, ours, tuned, weak):
    budgets = (3000, module.RELEASED)
    rows = []
    for name, values in {
        "sep-CMA-ES, tuned for 3 K": ours, "sep-CMA-ES, tuned for 33 K": ours, "rival": tuned, "weak": weak,
    }.items():  # fmt: skip
        for b, value in zip(budgets, values, strict=True):
            rows += [
                {"method": name, "budget": b, "seed": i, "test": value + 0.001 * pattern((i + len(name)) % 4)}
                for i in range(4)
            ]
    write(tmp_path, "methods", rows)
    return module.over_budgets("rival", "weak")(Recorded(tmp_path))


@pytest.mark.parametrize(
    ("ours", "tuned", "weak", "holds"),
    [
        ((0.5, 0.9), (0.1, 0.5), (0.1, 0.1), "yes"),
        ((0.5, 0.9), (0.8, 0.5), (0.1, 0.1), "in part"),  # ahead at the budget that counts, behind at a smaller one
        ((0.5, 0.9), (0.8, 0.95), (0.1, 0.1), "in part"),  # behind the tuned rival, ahead of the weak one
        ((0.5, 0.9), (0.8, 0.95), (0.1, 0.95), "no"),
        ((0.5, 0.9), (0.5, 0.9), (0.1, 0.9), "open"),
    ],
)
def test_methods_over_budgets(tmp_path, ours, tuned, weak, holds):
    text, found = methods(tmp_path, ours, tuned, weak)
    assert found == holds
    assert "of 2 budgets" in text and "32,640" in text


def head_rows(least, own, chance):
    rows = []
    for seed in range(4):
        wobble = 0.01 * pattern(seed)
        common = {"seed": seed, "generation": 60}
        rows.append(
            common
            | {
                "kind": "definition 1",
                "source": "exact",
                "partition": module.SPLIT,
                "B1": 9.0,
                "B2": 9.0,
                "B3_best": least + wobble,
            }
        )
        for partition, eps in ((module.SPLIT, own), (f"random, like {module.SPLIT}", chance)):
            for other in ("roles", "agents"):
                rows.append(
                    common
                    | {
                        "kind": "coupling",
                        "source": "exact",
                        "partition": partition,
                        "block": "agents",
                        "other": other,
                        "eps": eps + wobble * (seed % 2),
                    }
                )
    rows += [
        {"seed": s, "kind": "untaught", "control": "as sure", "draw": k, "partition": "agents, roles", "eps": 0.4}
        for s in range(4) for k in range(2)
    ]
    return rows  # fmt: skip


@pytest.mark.parametrize(
    ("least", "own", "chance", "holds"),
    [(0.5, 0.3, 0.9, "yes"), (5.0, 0.3, 0.9, "in part"), (5.0, 0.9, 0.9, "no"), (1.001, 0.9, 0.9, "open")],
)
def test_separability(tmp_path, least, own, chance, holds):
    write(tmp_path, "separability-head", head_rows(least, own, chance))
    text, found = module.separability(Recorded(tmp_path))
    assert found == holds and "untaught heads as sure 0.40 ± 0.00" in text


def test_two_studies_of_the_diagonal_must_agree(tmp_path):
    def found(one, two):
        write(tmp_path, "separability-diagonal", [
            {"generation": 60, "seed": s, "way": way, "test": 0.5 + (way == "adapts") * (one + 0.001 * pattern(s))}
            for s in range(4) for way in ("adapts", "frozen")
        ])  # fmt: skip
        write(tmp_path, "methods", [
            {"budget": module.RELEASED, "seed": s, "method": name, "test": 0.5 + (two + 0.001 * pattern(s)) * (i == 0)}
            for s in range(4) for i, name in enumerate(("sep-CMA-ES", "sep-CMA-ES, frozen diagonal"))
        ])  # fmt: skip
        return module.diagonal(Recorded(tmp_path))[1]

    assert [found(0.1, 0.1), found(-0.1, -0.1), found(0.1, -0.1)] == ["yes", "no", "open"]


@pytest.mark.parametrize("kept", [False, True])
def test_rare_worlds_only(tmp_path, kept):
    def found(gap, uniform=0.001):
        write(tmp_path, "winner_map", [
            {"setting": w, "turns": w, "budget": 3000, "tuning": "tuned", "uniform": uniform if w else 0.3, "seed": s,
             "method": m,
             "world": "know every turn" if (w < 3) == kept else "know",
             "J": 0.4 + (m == "sep-CMA-ES") * ((gap if 0 < w < 3 else 0.5) + 0.001 * pattern(s))}
            for w in range(5) for s in range(4) for m in ("sep-CMA-ES", "REINFORCE")
        ])  # fmt: skip
        return module.rare_reward(Recorded(tmp_path), kept)

    assert found(0.1)[1] == "yes" and found(-0.1)[1] == "no" and found(0.0)[1] == "open"
    assert found(0.1)[0].startswith("ahead in 2, behind in 0, neither in 0 of 2 worlds")


def test_pairs_are_by_seed():
    a, b = pd.Series([0.5, 0.75, 0.5], [3, 1, 2]), pd.Series([0.25, 0.25, 0.25, 9.0], [1, 2, 3, 9])
    d = pair(a, b)
    assert d["n"] == 3 and d["difference"] == pytest.approx(1 / 3) and said(d) == "+0.333 ± 0.083 (n = 3)"
    assert pair(a, b[[9]]) is None and verdict(None) == "open" and said(None) == "not recorded"


@pytest.mark.parametrize("n", [2, 4, 10, 200])
def test_a_verdict_asks_for_two_standard_errors_and_a_t_test(n):
    rng = np.random.default_rng(n)
    for _ in range(50):
        a, b = rng.normal(0.6, 1, n), rng.normal(0, 0.3, n)
        d = pair(pd.Series(a), pd.Series(b))
        beyond = abs(d["difference"]) > 2 * d["se"] and ttest_rel(a, b).pvalue < 0.05
        assert verdict(d) == ("open" if not beyond else "yes" if d["difference"] > 0 else "no")


def test_the_quoted_means_are_the_papers():
    wanted = {"full": 70.44, "no SVF": 67.85, "no Thinker": 68.69, "no roles: Workers only": 67.02,
              "reads the last token": 64.66}  # fmt: skip
    for name, mean in wanted.items():
        assert quoted(name) == pytest.approx(mean, abs=0.011)
    assert all(len(row) == 4 for row in QUOTED.values())


def test_a_missing_file_is_named(folder):
    (folder / "winner_map.jsonl").unlink()
    with pytest.raises(UserError, match="winner_map"):
        claims(folder)
    (folder / "evaluation.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="evaluation"):
        _ = Recorded(folder).evaluation


@pytest.mark.skipif(not (DATA / "runs" / "ablations.jsonl").exists(), reason="the ablations are not recorded yet")
def test_the_recorded_table_is_whole():
    table = claims()
    assert not table["here"].str.contains("not recorded|nan").any()
