"""The committed recipe of data/tiny_pool and data/coordinator: every model, its steps and its seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from .files import UserError, write_atomically
from .pool import EmbeddedPool
from .pool_training import SPECIALITIES, train_agent
from .skills import skill_table
from .slm_training import train_slm

STEPS = {"ada": 1300, "bo": 1800, "cy": 2600, "dee": 2000, "eli": 2400, "slm": 350}
TEXTS = 12_000  # conversations the SLM reads


def make(
    out: Path, slm: Path, state: Path, agents: Sequence[str] | None, steps: int | None, seed: int
) -> pd.DataFrame:
    """Train the agents asked for (all: then the SLM too), write the skill table and return it."""
    wanted = list(agents or SPECIALITIES)
    unknown = [a for a in wanted if a not in SPECIALITIES]
    if unknown:
        raise UserError(f"unknown agent {unknown[0]!r}: choose from {', '.join(SPECIALITIES)}.")
    for name in wanted:
        train_agent(name, out, state, steps or STEPS[name], seed)
    pool = EmbeddedPool(out)
    if not agents:
        print(f"The agents now hold {TEXTS:,} conversations for the SLM to read: some minutes.", flush=True)
        train_slm(pool, slm, state, steps or STEPS["slm"], TEXTS, seed)
    print("The skill table: a minute or two.", flush=True)
    table = skill_table(pool)
    write_atomically(Path(out) / "skills.csv", table.round(4).to_csv(index=False).encode())
    print(show(table))
    return table


def show(table: pd.DataFrame) -> str:
    """The skill table as text: agents x families (know: x topics), a column a role."""
    part = table[((table["kind"] == "all") & (table["family"] != "know")) | (table["family"] == "know")]
    part = part[~((part["family"] == "know") & (part["kind"] == "all"))]
    cells = part["value"].map("{:.2f}".format) + " ± " + part["se"].map("{:.2f}".format)
    pivot = part.assign(cell=cells).pivot_table(
        index=["family", "kind", "agent"], columns="role", values="cell", aggfunc="first", sort=False
    )
    return pivot.fillna("").to_string()
