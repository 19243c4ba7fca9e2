"""The coordinator's own small language model: plain language modelling on transcripts of this world (lesson 02).

Each text is a conversation cut at some turn, `#`, then remarks in plain words on what it is about and how far it
has come, in random order. No remark says who should speak next or as what: that is for evolution to find.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from . import tasks
from .backbone import Backbone
from .episode import Rules, Transcript, fixed, play, play_all, run
from .fit import fit
from .pool import EmbeddedPool
from .pool_training import ROW, ROWS, loss, pack
from .roles import Role
from .tasks import FAMILIES, HARD_FAMILIES, KINDS, TOPICS
from .templates import END, GENERATE, router_text
from .tiny_lm import TOKENIZER, TinyConfig, TinyLM

SHAPE = TinyConfig(d=128, layers=6, heads=4, ff=344)
FOUR = Rules(max_turns=4)


def remarks(family: str, kind: str, transcript: Transcript) -> list[str]:
    """What is true of a conversation: family, kind, whether it has a plan, an answer, a rejection at its end."""
    said = {t.role for t in transcript.turns}
    words = [f"<{family.removesuffix('-hard')}>", kind if kind in TOPICS else f"<{kind}>"]
    words.append("<planned>" if Role.THINKER in said else "<asked>")
    if Role.WORKER in said:
        words.append("<answered>")
    if transcript.turns and transcript.turns[-1].role == Role.VERIFIER:
        words.append("<rejected>")
    return words


def corpus(pool: EmbeddedPool, n: int, seed: int) -> list[str]:
    """n texts: conversations of randomly chosen agents and roles, on questions outside validation and test (facts
    of every split, as a pretrained model would know them), each cut at a random turn."""
    rng = np.random.default_rng([seed, n])
    drawn: list[tasks.Question] = []
    while len(drawn) < n:
        family = HARD_FAMILIES[rng.integers(3)] if rng.random() < 0.1 else FAMILIES[rng.integers(4)]
        kinds = KINDS[family.removesuffix("-hard")]
        q = tasks.draw(family, kinds[rng.integers(len(kinds))], rng)
        if family == "know" or q.split == "train":
            drawn.append(q)
    plays = []
    for q in drawn:
        agents, roles = rng.integers(len(pool.names), size=4), rng.integers(3, size=4)
        if rng.random() < 0.5:  # half of them in a sensible order
            roles = np.array([[1, 0, 2, 0], [0, 2, 0, 2], [1, 0, 0, 2], [1, 1, 0, 2]][rng.integers(4)])
        plays.append(play(q, fixed([(int(a), Role(int(r))) for a, r in zip(agents, roles, strict=True)]), pool, FOUR))
    texts = []
    for episode in run(play_all(plays)):
        turns = episode.turns[:-1] if episode.accepted else episode.turns
        cut = int(rng.integers(len(turns) + 1))
        transcript = Transcript(episode.question.prompt, turns[:cut])
        words = remarks(episode.question.family, episode.question.kind, transcript)
        order = rng.permutation(len(words))
        texts.append(router_text(transcript).removesuffix(GENERATE) + "".join(words[i] for i in order) + ".")
    return texts


def train_slm(pool: EmbeddedPool, folder: Path, state_folder: Path, steps: int, texts: int, seed: int) -> dict:
    """Train the SLM and write slm.safetensors and its card; resumes from `state_folder`."""
    documents = corpus(pool, texts, seed)
    lines = [TOKENIZER.encode(t) for t in documents]
    lines = [line for line in lines if len(line) <= ROW]
    rng = np.random.default_rng([seed, 1])
    model = TinyLM(SHAPE, seed=seed)

    def next_loss(model: TinyLM) -> torch.Tensor:
        chosen = [lines[i] for i in rng.integers(len(lines), size=6 * ROWS)]
        batch, _ = pack([(line, [0.0] + [1.0] * (len(line) - 1)) for line in chosen], ROWS)
        return loss(model, batch)

    def set_state(state: dict) -> None:
        rng.bit_generator.state = json.loads(state["rng"])

    state = (lambda: {"rng": json.dumps(rng.bit_generator.state)}, set_state)
    seconds = fit(model, next_loss, state, steps, state_folder / "slm.pt", f"slm, seed {seed}, pool {pool.identity}")
    backbone = Backbone(model, TOKENIZER)
    backbone.measure([t[: t.index(END) + 1] + GENERATE for t in documents[:2000]])
    card = {"name": "slm", "steps": steps, "texts": texts, "seed": seed, "pool": pool.identity,
            "cpu_seconds": round(seconds), "parameters": sum(p.numel() for p in model.parameters()),
            "torch": torch.__version__,
            "centre": [round(float(x), 5) for x in backbone.centre], "scale": round(backbone.scale, 5)}
    model.save(folder, "slm", card)
    return card
