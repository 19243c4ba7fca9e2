"""What each agent of the embedded pool can do alone: agents x families x roles (lesson 01)."""

from __future__ import annotations

import pandas as pd

from .pool import EmbeddedPool
from .roles import Role, accepts
from .tasks import FAMILIES, HARD_FAMILIES, Question, questions
from .templates import prompt_text, verdict_text


def skill_table(pool: EmbeddedPool, n: int = 200, split: str = "test", seed: int = 0) -> pd.DataFrame:
    """Measured skills on held-out questions, one row per agent, family, kind and role.

    thinker: share of exact plans. worker: right answers without a plan. worker+plan: with the reference plan.
    verifier: balanced accuracy, on the right answer and on wrong answers that the pool's own workers gave
    (reference plan on the table; facts have none). An unclear verdict is a revise.

    Returns: columns agent, family, kind, role, value, se, n.
    """
    rows = []
    for family in FAMILIES + HARD_FAMILIES:
        asked = questions(family, split, n, seed)
        plans = [None if q.family == "know" else q.plan for q in asked]
        wrong = _mistakes(pool, asked, plans)
        for agent, name in enumerate(pool.names):
            cells = {
                "thinker": _match(pool, agent, asked, Role.THINKER, [None] * len(asked), [q.plan for q in asked]),
                "worker": _match(pool, agent, asked, Role.WORKER, [None] * len(asked), [q.answer for q in asked]),
                "worker+plan": _match(pool, agent, asked, Role.WORKER, plans, [q.answer for q in asked]),
            }
            if family == "know":
                del cells["worker+plan"]
            frame = pd.DataFrame({"kind": [q.kind for q in asked], **cells})
            right = _accepted(pool, agent, asked, plans, [q.answer for q in asked])
            fooled = _accepted(pool, agent, asked, plans, wrong)
            refused = [None if w is None else not a for w, a in zip(wrong, fooled, strict=True)]
            frame["_right"], frame["_wrong"] = right, pd.Series(refused, dtype="object")
            for kind, part in [("all", frame), *frame.groupby("kind")]:
                for role in cells:
                    p, m = float(part[role].mean()), len(part)
                    rows.append((name, family, kind, role, p, (p * (1 - p) / m) ** 0.5, m))
                a, r = part["_right"].astype(float), part["_wrong"].dropna().astype(float)
                balanced, se = float("nan"), float("nan")
                if len(r):
                    balanced = (a.mean() + r.mean()) / 2
                    se = (a.var(ddof=0) / len(a) + r.var(ddof=0) / len(r)) ** 0.5 / 2
                rows.append((name, family, kind, "verifier", float(balanced), float(se), len(a) + len(r)))
    return pd.DataFrame(rows, columns=["agent", "family", "kind", "role", "value", "se", "n"])


def _match(pool, agent, asked, role, plans, wanted) -> list[bool]:
    said = pool.speak([(agent, prompt_text(role, q.prompt, p)) for q, p in zip(asked, plans, strict=True)])
    return [(s.strip() if role == Role.WORKER else s) == w for s, w in zip(said, wanted, strict=True)]


def _mistakes(pool: EmbeddedPool, asked: list[Question], plans: list[str | None]) -> list[str | None]:
    """For each question a wrong answer that some agent of the pool gives, the agents in turn; None if all are right."""
    n = len(pool.names)
    prompts = [prompt_text(Role.WORKER, q.prompt, p) for q, p in zip(asked, plans, strict=True)]
    said = [pool.speak([(a, t) for t in prompts]) for a in range(n)]
    found: list[str | None] = []
    for i, q in enumerate(asked):
        wrong = [said[(i + a) % n][i] for a in range(n) if said[(i + a) % n][i].strip() != q.answer]
        found.append(wrong[0] if wrong else None)
    return found


def _accepted(pool, agent, asked, plans, answers) -> list[bool]:
    prompts = [
        (agent, prompt_text(Role.VERIFIER, q.prompt, p, a or ""))
        for q, p, a in zip(asked, plans, answers, strict=True)
    ]
    return [accepts(verdict_text(s)) for s in pool.speak(prompts)]
