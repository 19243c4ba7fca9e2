"""What a folder of real replies cost: one row an agent and role (lesson 11)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .llm_cache import read_requests

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("answered", "length", "empty", "filtered", "refused", "timed_out", "failed")


def ledger(path: Path) -> pd.DataFrame:
    """Calls and requests of a replies.sqlite per agent and role, then one row `all`.

    calls: distinct questions. requests: all that were sent; then how many ended in each kind, `unanswered` those
    without a recorded outcome (under way, or their process was killed). lost: calls that stay without a reply.
    cost: sum of what the replies reported, at the known prices; None = unknown, as soon as one reply's is unknown.
    at_most: the same with an upper bound for each request of unknown cost (time-outs, resets, kills); None if an
    agent's price is unknown. seconds: of the requests that brought a text.
    Raises: UserError if there is no such file or it is damaged.
    """
    import pandas as pd

    requests = pd.DataFrame(read_requests(path), columns=_COLUMNS)
    groups = [(agent, role, rows) for (agent, role), rows in requests.groupby(["agent", "role"], sort=True)]
    rows = [_row(agent, role, rows) for agent, role, rows in groups] + [_row("all", "", requests)]
    table = pd.DataFrame(rows)
    for name in ("cost", "at_most"):
        table[name] = pd.Series([row[name] for row in rows], dtype=object)  # so that None stays None
    return table


_COLUMNS = [
    "call", "agent", "role", "kind", "final", "usable", "most_money", "prompt_tokens", "completion_tokens",
    "cost", "seconds",
]  # fmt: skip


def _row(agent: str, role: str, rows: pd.DataFrame) -> dict[str, object]:
    kind, cost, most = rows["kind"], rows["cost"].astype(float), rows["most_money"].astype(float)
    usable, final = rows["usable"] == 1, rows["final"] == 1
    replied = kind.isin(["answered", "length", "empty", "filtered"])
    bound = cost.fillna(most)
    seconds = rows["seconds"][usable].astype(float)
    return {
        "agent": agent,
        "role": role,
        "calls": rows["call"].nunique(),
        "requests": len(rows),
        **{k: int((kind == k).sum()) for k in KINDS},
        "unanswered": int(kind.isna().sum()),
        "lost": len(set(rows["call"][final]) - set(rows["call"][final & usable])),
        "prompt_tokens": int(rows["prompt_tokens"].fillna(0).sum()),
        "completion_tokens": int(rows["completion_tokens"].fillna(0).sum()),
        "cost": None if cost[replied].isna().any() or cost.isna().all() else float(cost.sum()),
        "at_most": None if bound.isna().any() else float(bound.sum()),
        "seconds": float(seconds.median()) if len(seconds) else float("nan"),
        "seconds_p95": float(seconds.quantile(0.95)) if len(seconds) else float("nan"),
    }


def as_text(table: pd.DataFrame) -> str:
    """The ledger for a terminal; kinds that never occurred are left out, an unknown cost reads `unknown`."""
    absent = [k for k in (*KINDS, "unanswered", "lost") if not table[k].any()]
    shown = table.drop(columns=absent)
    for name in ("cost", "at_most"):
        shown[name] = ["unknown" if v is None else f"{v:.4f}" for v in table[name]]
    for name in ("seconds", "seconds_p95"):
        shown[name] = ["" if v != v else f"{v:.2f}" for v in table[name]]
    return shown.to_string(index=False)
