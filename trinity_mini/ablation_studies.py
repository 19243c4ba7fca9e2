"""The studies of lesson 10: ablations, how roles emerge over training, and transfer without training."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .ablations import READERS, VARIANTS, Variant, VariantGame
from .analysis import specialisation, walked_frame
from .backbone import Backbone
from .baselines import Array, sep_cma_es
from .episode_tree import EpisodeTree
from .pool import EmbeddedPool
from .presets import preset
from .reply_cache import CachedPool
from .study import Job, Row, Study
from .tasks import FAMILIES, HARD_FAMILIES, question_set, questions

BUDGET = 136 * 4 * 60  # episodes, as preset mini
TEST = 11  # seed of the held-out questions and their draws, as in `evaluate`
MOST = 200_000  # nodes of a tree before it starts afresh: a node holds its conversation
BY_NAME = {v.name: v for v in VARIANTS}
# The heads whose first step size is chosen. By argmax only the order of the logits counts, so all sigma0 are alike.
HEADS = {v.name: v for v in VARIANTS if v.name.startswith("head: ") and not v.argmax}
SIGMAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
TUNING_SEEDS = (101, 102, 103)


@functools.cache
def _pool() -> EmbeddedPool:
    return CachedPool()


@functools.cache
def _backbone(reads: str) -> Backbone:
    """A reader of the shipped SLM, its states centred and scaled on conversations of a uniform policy."""
    shipped = Backbone.embedded()
    if reads == "penultimate":
        return shipped
    tree = EpisodeTree(shipped, _pool(), questions(FAMILIES[0], "train", 1, 0) + _train()[::2])
    game = VariantGame(tree, BY_NAME["full"])
    game.play_plain(np.zeros(game.n), 0)
    other = READERS[reads](shipped.model, shipped.tokenizer)
    other.measure([shipped.render(t) for t in tree.transcripts])
    return other


def _train() -> list:
    return [q for f in FAMILIES for q in questions(f, "train", preset("mini").train_per_family, 0)]


@functools.cache
def _tree(reads: str, max_turns: int, split: str) -> EpisodeTree:
    """The conversations about the training questions, the held-out ones ("test", "validation") or a harder family's."""
    if split == "train":
        asked = _train()
    elif split == "test":
        asked = question_set("test", 200, TEST)
    elif split == "validation":
        asked = question_set("validation", 64, 0)  # all facts that the split has
    else:
        asked = question_set("test", 200, TEST, [split])
    return EpisodeTree(_backbone(reads), _pool(), asked, max_turns)


def _game(variant: Variant, split: str) -> VariantGame:
    if any(_tree(*key).size > MOST for key in _seen):
        _tree.cache_clear()
        _seen.clear()
    key = variant.reads, variant.max_turns, split
    _seen.add(key)
    return VariantGame(_tree(*key), variant)


_seen: set[tuple[str, int, str]] = set()


def _measured(game: VariantGame, theta: Array) -> Row:
    """Accuracy, its parts by family, turns and calls on held-out questions."""
    played = game.play_plain(theta, TEST)
    family = np.array([q.family for q in game.tree.asked])
    turns = (played.agents >= 0).sum(1)
    return {
        "accuracy": float(played.rewards.mean()),
        "n": len(family),
        "turns": float(turns.mean()),
        **{f: float(played.rewards[family == f].mean()) for f in dict.fromkeys(family.tolist())},
    }


def run_ablation(job: Job) -> list[Row]:
    """One variant trained from one seed, measured on held-out questions, drawn and by argmax."""
    variant = BY_NAME[job["variant"]]
    game = _game(variant, "train")
    *_, last = sep_cma_es(game, job["budget"], job["seed"], sigma0=variant.sigma0)
    row = {"selection": "as trained", "reward": last.reward, "parameters": game.n, "episodes": last.episodes}
    rows = [row | _measured(_game(variant, "test"), last.theta)]
    if not variant.argmax:
        sharp = Variant(**{**vars(variant), "argmax": True})
        rows.append(row | {"selection": "argmax"} | _measured(_game(sharp, "test"), last.theta))
    return rows


def run_head(job: Job) -> list[Row]:
    """A head trained from one seed with a given sigma0, measured on validation (to choose by) or test questions."""
    variant = HEADS[job["variant"]]
    game = _game(variant, "train")
    *_, last = sep_cma_es(game, job["budget"], job["seed"], sigma0=job["sigma0"])
    row = {"reward": last.reward, "parameters": game.n, "episodes": last.episodes}
    return [row | _measured(_game(variant, job["split"]), last.theta)]


def run_emergence(job: Job) -> list[Row]:
    """The full variant from one seed: who speaks as what on held-out questions every few generations, and transfer."""
    full, names = BY_NAME["full"], _pool().names
    game, test = _game(full, "train"), _game(full, "test")
    rows: list[Row] = [_looked_at(test, np.zeros(game.n), 0, names)]
    theta = np.zeros(game.n)
    for generation, step in enumerate(sep_cma_es(game, job["budget"], job["seed"]), 1):
        theta = step.theta
        if generation % job["every"] == 0:
            rows.append(_looked_at(test, theta, generation, names))
    for family in HARD_FAMILIES:
        hard = _game(full, family)
        rows.append({"what": "transfer", "to": family, **_measured(hard, theta)})
        uniform = _measured(hard, np.zeros(game.n))
        rows.append({"what": "transfer", "to": f"{family}, uniform policy", **uniform})
    for a, name in enumerate(names):
        without = BY_NAME[f"without agent {a}"]
        rows.append({"what": "transfer", "to": f"without {name}", **_measured(_game(without, "test"), theta)})
    w = theta.reshape(-1, test.tree.backbone.d)
    for a in range(len(names) - 1):
        order = np.arange(len(w))
        order[[a, a + 1]] = a + 1, a
        swapped = _measured(test, w[order].ravel())
        rows.append({"what": "transfer", "to": f"{names[a]} and {names[a + 1]} exchanged", **swapped})
    return rows


def _looked_at(game: VariantGame, theta: Array, generation: int, names: Any) -> Row:
    played = game.play_plain(theta, TEST)
    asked = game.tree.asked
    turns = walked_frame(asked, played.agents, played.roles, played.rewards, names)
    family = np.array([FAMILIES.index(q.family) for q in asked])
    counts = np.zeros((len(FAMILIES), game.turns, len(names), 3), dtype=int)
    follows = np.zeros((len(names) * 3 + 1,) * 2, dtype=int)  # the last index: start, or end
    speaker = np.where(played.agents >= 0, played.agents * 3 + played.roles, len(names) * 3)
    path = np.pad(speaker, ((0, 0), (1, 1)), constant_values=len(names) * 3)
    for t in range(game.turns):
        on = played.agents[:, t] >= 0
        np.add.at(counts, (family[on], t, played.agents[on, t], played.roles[on, t]), 1)
    for before, after in zip(path[:, :-1].T, path[:, 1:].T, strict=True):
        spoken = (before < len(names) * 3) | (after < len(names) * 3)
        np.add.at(follows, (before[spoken], after[spoken]), 1)
    return {
        "what": "generation",
        "generation": generation,
        **_measured(game, theta),
        **{f"mi_{k}": v for k, v in specialisation(turns, 200, 0).items()},
        "counts": counts.tolist(),
        "follows": follows.tolist(),
    }


STUDIES = {
    s.name: s
    for s in (
        Study(
            "ablations",
            "Trainings of preset mini without SVF, each with one part taken out or changed; 800 held-out questions",
            [
                {"variant": v.name, "seed": s, "budget": BUDGET}
                | ({} if v.sigma0 == preset("mini").sigma0 else {"sigma0": v.sigma0})  # another sigma0 is another job
                for v in VARIANTS
                for s in range(1, 11 if v.name == "full" else 7)
            ],
            [{"variant": name, "seed": 1, "budget": 136 * 4} for name in ("full", "at most 2 turns")],
            run_ablation,
        ),
        Study(
            "heads",
            "Each head by its first step size sigma0: seeds above 100 choose on 256 validation questions; seeds to 6, "
            "with the preset's, are what `ablations` would hold without a choice",
            [
                {"variant": name, "sigma0": sigma0, "seed": seed, "budget": BUDGET, "split": "validation"}
                for seed in TUNING_SEEDS
                for name in HEADS
                for sigma0 in SIGMAS
            ]
            + [
                {"variant": name, "sigma0": preset("mini").sigma0, "seed": seed, "budget": BUDGET, "split": "test"}
                for name, head in HEADS.items()
                if head.sigma0 != preset("mini").sigma0 and head.head != "linear"  # that would be `full`
                for seed in range(1, 7)
            ],
            [{"variant": "head: sparse", "sigma0": 1.0, "seed": 1, "budget": 136 * 4, "split": "validation"}],
            run_head,
        ),
        Study(
            "emergence",
            "Who speaks as what on 800 held-out questions over ten trainings without SVF, and transfer of the results",
            [{"seed": s, "budget": BUDGET, "every": 3} for s in range(1, 11)],
            [{"seed": 1, "budget": 136 * 4, "every": 1}],
            run_emergence,
        ),
    )
}
