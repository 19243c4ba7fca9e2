"""The skill table, against counting by hand on a scripted pool."""

import numpy as np
import pandas as pd
import pytest
from world import LetterPool, answer_of

from trinity_mini.make_pool import show
from trinity_mini.roles import Role
from trinity_mini.skills import skill_table
from trinity_mini.tasks import FAMILIES, HARD_FAMILIES, KINDS, questions
from trinity_mini.templates import check, prompt_text

N = 12


class Known(LetterPool):
    """Agent 0 plans exactly, 1 answers with a plan and honestly checks, 2 says x and accepts all."""

    def _run(self, requests):
        plans = {q.prompt: q.plan for f in FAMILIES + HARD_FAMILIES for q in questions(f, "test", N, 0)}
        said = []
        for agent, prompt in requests:
            question, role = next(q for q in sorted(plans, key=len, reverse=True) if prompt.startswith(q)), prompt[-1]
            planned = prompt != prompt_text(Role.WORKER, question)
            candidate = prompt[:-1].rpartition("W")[2].removesuffix(".")
            said.append(
                {
                    (0, "T"): plans[question],
                    (1, "W"): answer_of(question) if planned or " " in question else "y",
                    (1, "V"): check(candidate, answer_of(question)),
                    (2, "V"): "A",
                }.get((agent, role), "x")
            )
        return said


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return skill_table(Known(tmp_path_factory.mktemp("known")), n=N)


def value(table, agent, family, role, kind="all"):
    [row] = table[
        (table["agent"] == f"agent{agent}") & (table["family"] == family) & (table["role"] == role)
        & (table["kind"] == kind)
    ].itertuples()  # fmt: skip
    return row


def test_every_agent_family_kind_and_role_has_a_row(table):
    wanted = {
        (f"agent{a}", family, kind, role)
        for a in range(3)
        for family in FAMILIES + HARD_FAMILIES
        for kind in ("all", *KINDS[family.removesuffix("-hard")])
        for role in ("thinker", "worker", "worker+plan", "verifier")
        if (family, role) != ("know", "worker+plan")
    }
    found = [tuple(r) for r in table[["agent", "family", "kind", "role"]].itertuples(index=False)]
    assert len(found) == len(set(found)) and set(found) == wanted


@pytest.mark.parametrize("family", ["math", "code", "reason", "reason-hard"])
def test_values_are_those_of_the_script(table, family):
    assert value(table, 0, family, "thinker").value == 1.0 and value(table, 1, family, "thinker").value == 0.0
    assert value(table, 1, family, "worker").value == 0.0 and value(table, 1, family, "worker+plan").value == 1.0
    assert value(table, 1, family, "verifier").value == 1.0
    assert value(table, 2, family, "verifier").value == 0.5  # accepts all: right ones and wrong ones
    assert value(table, 0, family, "verifier").value == 0.5  # "x" is no verdict, so a revise
    assert value(table, 0, family, "verifier").se == 0.0 and value(table, 0, family, "verifier").n == 2 * N


def test_facts_need_no_plan(table):
    assert value(table, 1, "know", "worker").value == 1.0 and value(table, 1, "know", "verifier").value == 1.0


def test_standard_errors_are_those_of_a_share(tmp_path):
    table = skill_table(LetterPool(tmp_path), n=40)
    part = table[(table["role"] != "verifier")]
    np.testing.assert_allclose(part["se"], np.sqrt(part["value"] * (1 - part["value"]) / part["n"]))
    assert ((part["value"] > 0) & (part["value"] < 1)).any()
    for row in table[table["role"] == "verifier"].itertuples():
        assert 0 <= row.value <= 1 and 0 <= row.se <= 0.5 and row.n > 0
    whole = table[table["kind"] == "all"].set_index(["agent", "family", "role"])["n"]
    parts = table[table["kind"] != "all"].groupby(["agent", "family", "role"])["n"].sum()
    pd.testing.assert_series_equal(whole.sort_index(), parts.sort_index())


def test_balanced_accuracy_weighs_right_and_wrong_answers_alike():
    from trinity_mini import skills

    asked = questions("know", "test", 10, 0)

    class Half:
        names = ["a"]

        def speak(self, requests):
            """As a Worker right on the first six; as a Verifier accepts the first three of whatever it is shown."""
            order = [q.prompt for q in asked]
            out = []
            for _, prompt in requests:
                i = next(i for i, p in enumerate(order) if prompt.startswith(p))
                out.append(("A" if i < 3 else "R") if prompt.endswith("V") else asked[i].answer if i < 6 else "no")
            return out

    right = skills._accepted(Half(), 0, asked, [None] * 10, [q.answer for q in asked])
    wrong = skills._mistakes(Half(), asked, [None] * 10)
    assert right == [True] * 3 + [False] * 7 and wrong == [None] * 6 + ["no"] * 4


def test_a_perfect_pool_has_no_mistakes_to_verify(tmp_path, monkeypatch):
    monkeypatch.setattr("trinity_mini.skills._mistakes", lambda pool, asked, plans: [None] * len(asked))
    table = skill_table(LetterPool(tmp_path), n=8)
    assert table[table["role"] == "verifier"]["value"].isna().all()


def test_show_is_a_line_an_agent_and_kind(table):
    lines = show(table).splitlines()
    assert len(lines) == 2 + 3 * (6 + 4)  # two header lines; six families and four topics, three agents each
    assert "nan" not in show(table) and "1.00 ± 0.00" in lines[2]
