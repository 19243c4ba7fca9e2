"""How good is it? Every coordinator and baseline on the same held-out questions (lesson 07)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from .chains import Chain, play_chain, search_chain
from .episode import Grade, Rules, fixed, play, play_all, run
from .files import UserError, write_atomically
from .pool import EmbeddedPool, Pool, drawn
from .roles import Role
from .tasks import FAMILIES, KINDS, Question
from .templates import prompt_text

COLUMNS = ["name", "family", "question", "reward", "turns", "calls"]


def records(name: str, asked: Sequence[Question], rewards, turns, calls) -> pd.DataFrame:
    """One row a question: who played it, its family and id, reward, turns and calls."""
    rows = zip(asked, rewards, np.broadcast_to(turns, len(asked)), np.broadcast_to(calls, len(asked)), strict=True)
    return pd.DataFrame([(name, q.family, q.id, r, float(t), float(c)) for q, r, t, c in rows], columns=COLUMNS).astype(
        {"reward": float}
    )


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy with its standard error, per name and family and over all; lost episodes (NaN) are left out.

    The error is the binomial one where every reward is 0 or 1; of grades in between (MT-Bench's tenths) it is that of
    the sample, NaN for a single one.
    Returns: columns name, family, value, se, n, turns, calls, in order of first appearance.
    """
    groups = pd.concat([frame, frame.assign(family="all")]).groupby(["name", "family"], sort=False)
    table = groups.agg(
        value=("reward", "mean"), n=("reward", "count"), turns=("turns", "mean"), calls=("calls", "mean")
    )
    p = table["value"]
    between = groups["reward"].agg(lambda r: bool((r.notna() & ~r.isin((0, 1))).any()))
    table.insert(1, "se", ((p * (1 - p) / table["n"]) ** 0.5).mask(between, groups["reward"].sem(ddof=1)))
    return table.reset_index()


def wide(table: pd.DataFrame) -> str:
    """A summary as text: a line a name, a column a family, accuracies with standard errors."""
    families = [f for f in (*FAMILIES, "all") if f in set(table["family"])]
    families += [f for f in dict.fromkeys(table["family"]) if f not in families]
    turns = "turns" in table.columns
    width = max([34, *(len(name) + 1 for name in table["name"])])
    lines = [" " * width + "".join(f"{f:>13}" for f in families) + (f"{'turns':>8}" if turns else "")]
    for name in dict.fromkeys(table["name"]):
        part = table[table["name"] == name].set_index("family")
        cells = [f"{part.value[f]:.2f} ± {part.se[f]:.2f}" if f in part.index else "" for f in families]
        mean_turns = f"{part['turns'].get('all', np.nan):8.1f}".replace("nan", "") if turns else ""
        lines.append(f"{name:{width}}" + "".join(f"{c:>13}" for c in cells) + mean_turns)
    return "\n".join(line.rstrip() for line in lines)


def find_chains(pool: EmbeddedPool, per_kind: int = 30, seed: int = 5) -> dict:
    """The best fixed chains on training questions: per agent alone, per family, per question kind.

    Returns: plain JSON values; a chain is a list of [agent, role].
    """
    from .tasks import questions

    by_kind: dict[str, list[Question]] = {}
    for family in FAMILIES:
        many = questions(family, "train", 300 if family == "know" else 12 * per_kind, seed)
        for kind in KINDS[family]:
            by_kind[kind] = [q for q in many if q.kind == kind][:per_kind]
    family_set = {f: [q for k in KINDS[f] for q in by_kind[k]] for f in FAMILIES}
    few = [q for f in FAMILIES for q in family_set[f][:: max(1, len(family_set[f]) // 40)]]
    n = len(pool.names)
    alone = {pool.names[a]: search_chain(pool, few, [a]) for a in range(n)}
    family = {f: search_chain(pool, family_set[f], range(n)) for f in FAMILIES}
    kind = {k: search_chain(pool, by_kind[k], range(n)) for k in by_kind}
    found = {"alone": alone, "family": family, "kind": kind}
    return {"pool": pool.identity} | {
        name: {k: {"chain": [[a, int(r)] for a, r in chain], "train": v} for k, (chain, v) in group.items()}
        for name, group in found.items()
    }


def load_chains(pool: EmbeddedPool) -> dict:
    """chains.json beside the pool, found again if it is missing or of another pool."""
    path = pool.folder / "chains.json"
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            current = found["pool"] == pool.identity
            if current:
                _check_chains(found, pool)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            raise UserError(f"{path} is damaged: delete it, it is then made again.") from None
        if current:
            return found
    found = find_chains(pool)
    write_atomically(path, (json.dumps(found) + "\n").encode())
    return found


def _check_chains(found: dict, pool: EmbeddedPool) -> None:
    kinds = [k for f in FAMILIES for k in KINDS[f]]
    for group, keys in (("alone", found["alone"].keys()), ("family", FAMILIES), ("kind", kinds)):
        for key in keys:
            if not all(a in range(len(pool.names)) for a, _ in as_chain(found[group][key])):
                raise ValueError(f"an agent of {key} is not in the pool")


def as_chain(entry: dict) -> Chain:
    return tuple((a, Role(r)) for a, r in entry["chain"])


def baselines(pool: EmbeddedPool, asked: Sequence[Question]) -> pd.DataFrame:
    """Records of all baselines that need no coordinator, on the questions asked.

    A harder family is played by the chains chosen on its easy one: zero-shot, like the coordinator.
    """
    chains = load_chains(pool)
    n = len(pool.names)
    frames, said = [], []
    for a, name in enumerate(pool.names):
        answers = pool.speak([(a, prompt_text(Role.WORKER, q.prompt)) for q in asked])
        said.append([s.strip() for s in answers])
        right = [s == q.answer for s, q in zip(said[-1], asked, strict=True)]
        frames.append(records(f"{name}, one call", asked, right, 1, 1))
    for name, entry in chains["alone"].items():
        chain = as_chain(entry)
        rewards = play_chain(pool, chain, asked)
        frames.append(records(f"{name}, five turns, all roles", asked, rewards, len(chain), len(chain)))
    votes = [Counter(said[a][i] for a in range(n)).most_common(1)[0][0] for i in range(len(asked))]
    frames.append(records("majority vote", asked, [v == q.answer for v, q in zip(votes, asked, strict=True)], 1, n))
    by_kind = {k: as_chain(e) for k, e in chains["kind"].items()}
    by_family = {f: as_chain(e) for f, e in chains["family"].items()}
    own_family = [by_family[q.family.removesuffix("-hard")] for q in asked]
    frames.append(_by_group(pool, "static chain per family", asked, own_family))
    frames.append(_by_group(pool, "fixed chain per kind (ceiling)", asked, [by_kind[q.kind] for q in asked]))
    every = list(dict.fromkeys([*by_kind.values(), *by_family.values()]))
    best = np.max([play_chain(pool, c, asked) for c in every], axis=0)
    frames.append(records("oracle over those chains", asked, best, np.nan, np.nan))
    return pd.concat(frames, ignore_index=True)


def agents_alone(pool: Pool, asked: Sequence[Question], seed: int, grade: Grade) -> pd.DataFrame:
    """Records of each agent of any pool alone: one call as a Worker."""
    frames = []
    for a, name in enumerate(pool.names):
        one = fixed([(a, Role.WORKER)])
        plays = [play(q, one, drawn(pool, seed, i), Rules(max_turns=1), grade) for i, q in enumerate(asked)]
        frames.append(episode_records(f"{name}, one call", run(play_all(plays))))
    return pd.concat(frames, ignore_index=True)


def _by_group(pool: EmbeddedPool, name: str, asked: Sequence[Question], chains: Sequence[Chain]) -> pd.DataFrame:
    rewards = np.zeros(len(asked))
    for chain in dict.fromkeys(chains):
        mine = [i for i, c in enumerate(chains) if c == chain]
        rewards[mine] = play_chain(pool, chain, [asked[i] for i in mine])
    lengths = [len(c) for c in chains]
    return records(name, asked, rewards, lengths, lengths)


def episode_records(name: str, episodes) -> pd.DataFrame:
    """Records of played episodes; a lost one has reward NaN."""
    asked = [e.question for e in episodes]
    rewards = [np.nan if e.reward is None else e.reward for e in episodes]
    turns = [len(e.turns) for e in episodes]
    return records(name, asked, rewards, turns, turns)
