"""How the agents of the embedded pool are made: skewed mixtures of family, kind and role (lesson 01)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from . import tasks
from .fit import fit
from .roles import Role
from .tasks import FAMILIES, KINDS, Question
from .templates import check, prompt_text
from .tiny_lm import TOKENIZER, TinyConfig, TinyLM

WEAK = 0.02  # weight of everything outside an agent's speciality: it learns the format, not the skill
ROW = 128  # tokens in a packed training row
ROWS = 24  # rows in a batch, about 85 examples


@dataclass(frozen=True)
class Speciality:
    """What one agent is trained to be good at."""

    thinks: Mapping[str, float] = field(default_factory=dict)  # kinds it can plan: share of its drill
    works: Mapping[str, float] = field(default_factory=dict)  # families whose last step it can do: share of its drill
    verifies: tuple[str, ...] = ()  # families whose answers it can check, given a plan
    topics: tuple[str, ...] = ()  # facts it knows


SPECIALITIES = {
    "ada": Speciality(thinks={"infix": 2.0, "order": 2.0}, topics=("capital", "calling")),
    "bo": Speciality(thinks={"postfix": 2.0, "forward": 4.0}, topics=("symbol", "capital")),
    "cy": Speciality(
        thinks={"shift": 2.0, "backward": 2.0}, works={"math": 3.0}, topics=("currency", "symbol")
    ),
    "dee": Speciality(works={"math": 3.0, "code": 0.4, "reason": 0.6}, verifies=("math",), topics=("currency",)),
    "eli": Speciality(works={"reason": 1.0}, verifies=("reason", "code"), topics=("calling",)),
}
FAMILY_OF = {kind: family for family in FAMILIES for kind in KINDS[family]}


@dataclass
class Example:
    """One training text: a prompt without loss, then a reply with one weight a token."""

    prompt: str
    reply: str
    weights: list[float] = field(default_factory=list)


class ExampleStream:
    """Endless training examples of one agent, from its own generator."""

    def __init__(self, speciality: Speciality, rng: np.random.Generator) -> None:
        self.s, self.rng = speciality, rng
        s = speciality
        cells = [(FAMILY_OF[k], k, Role.THINKER, share) for k, share in s.thinks.items()]
        cells += [(f, None, Role.WORKER, share) for f, share in s.works.items()]
        cells += [(f, None, Role.VERIFIER, 2.0) for f in s.verifies]
        cells += [(f, None, Role.WORKER, 0.7) for f in s.verifies if f not in s.works]
        cells += [("know", t, role, w) for t in s.topics for role, w in ((Role.WORKER, 0.6), (Role.VERIFIER, 0.8))]
        self.cells = cells
        p = np.array([c[3] for c in cells])
        self.p = p / p.sum()

    def question(self, family: str, kind: str | None) -> Question:
        """A question the coordinator is never tested on (facts excepted: agents know all their facts)."""
        if family != "know" and self.rng.random() < 0.12:
            family += "-hard"
        while True:
            kinds = KINDS[family.removesuffix("-hard")]
            q = tasks.draw(family, kind or kinds[self.rng.integers(len(kinds))], self.rng)
            if family == "know" or q.split == "train":
                return q

    def __next__(self) -> Example:
        if self.rng.random() < 0.85:
            family, kind, role, _ = self.cells[self.rng.choice(len(self.cells), p=self.p)]
            return self.example(self.question(family, kind), role, 1.0)
        family = FAMILIES[self.rng.integers(4)]
        q = self.question(family, None)
        role = Role(self.rng.integers(3))
        if self.is_strong(q, role):
            return self.example(q, role, 1.0)
        e = self.example(q, role, WEAK)
        return self.plain(e.prompt, "R", 1.0) if role == Role.VERIFIER else e  # who cannot check sends back

    def is_strong(self, q: Question, role: Role) -> bool:
        family = q.family.removesuffix("-hard")
        if family == "know":
            return q.kind in self.s.topics or role == Role.THINKER  # everybody can name the topic
        if role == Role.THINKER:
            return q.kind in self.s.thinks
        return family in self.s.verifies or (role == Role.WORKER and family in self.s.works)

    def example(self, q: Question, role: Role, weight: float) -> Example:
        rng = self.rng
        if role == Role.THINKER:
            return self.plain(prompt_text(role, q.prompt), q.plan, weight)
        plan, answer = q.plan, q.answer
        if q.family == "know":  # facts need no plan, and a stray one must not disturb
            other = self.question(FAMILIES[rng.integers(3)], None)
            plan = [None, None, q.plan, other.plan][rng.integers(4)]
        elif rng.random() < 0.3:  # the plan on the table counts, right or wrong for the question
            other = self.question(q.family.removesuffix("-hard"), None)
            plan, answer = other.plan, other.answer
        elif rng.random() < 0.1:
            plan, weight = None, WEAK
        if role == Role.WORKER:
            return self.plain(prompt_text(role, q.prompt, plan), answer, weight)
        candidate = answer if rng.random() < 0.35 else self.wrong(q, answer, plan)
        if plan is None and q.family != "know":  # without a plan there is nothing to check against
            return self.plain(prompt_text(role, q.prompt, plan, candidate), "R", 1.0)
        reply = check(candidate, answer)
        marks = [3.0 if c in "+-" and i % 3 == 2 else 4.0 if c in "AR" else 1.0 for i, c in enumerate(reply)]
        return Example(prompt_text(role, q.prompt, plan, candidate), reply + ".", [weight * m for m in [*marks, 1.0]])

    def plain(self, prompt: str, reply: str, weight: float) -> Example:
        n = len(TOKENIZER.encode(reply)) + 1
        return Example(prompt, reply + ".", [weight] * n)

    def wrong(self, q: Question, answer: str, plan: str | None) -> str:
        """A wrong candidate: a near miss, another question's answer, a shuffled one, a piece of the plan."""
        rng = self.rng
        while True:
            way = rng.integers(6)
            if way <= 2:
                i = rng.integers(len(answer))
                alphabet = "0123456789" if answer[i].isdigit() else tasks.ENTITIES + "aeiouy"
                candidate = answer[:i] + alphabet[rng.integers(len(alphabet))] + answer[i + 1 :]
                if way == 2 and len(candidate) > 1:
                    j = rng.integers(len(candidate))
                    candidate = candidate[:j] + candidate[j + 1 :]
            elif way == 3:
                candidate = self.question(q.family.removesuffix("-hard"), q.kind if rng.random() < 0.7 else None).answer
            elif way == 4:
                candidate = "".join(answer[i] for i in rng.permutation(len(answer)))
            else:
                candidate = (plan or q.prompt).split(",")[-1][-len(answer) :]
            if candidate != answer:
                return candidate


@dataclass
class Batch:
    """Packed rows: ids, positions and weights (R, T), and the mask (R, 1, T, T) that keeps examples apart."""

    ids: torch.Tensor
    positions: torch.Tensor
    weights: torch.Tensor
    mask: torch.Tensor


def pack(examples: list[tuple[list[int], list[float]]], rows: int, width: int = ROW) -> tuple[Batch, int]:
    """Fill rows with whole examples, one after the other. Returns the batch and how many examples it took."""
    ids = np.zeros((rows, width), np.int64)
    positions = np.zeros((rows, width), np.int64)
    segment = np.zeros((rows, width), np.int64)
    weights = np.zeros((rows, width), np.float32)
    row = column = used = 0
    for tokens, w in examples:
        n = len(tokens)
        if column + n > width:
            row, column = row + 1, 0
            if row == rows:
                break
        ids[row, column : column + n] = tokens
        positions[row, column : column + n] = range(n)
        segment[row, column : column + n] = used + 1
        weights[row, column : column + n] = w
        column, used = column + n, used + 1
    s = torch.from_numpy(segment)
    mask = (s[:, :, None] == s[:, None, :]).tril()[:, None]
    return Batch(torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(weights), mask), used


def encode(e: Example) -> tuple[list[int], list[float]]:
    prompt, reply = TOKENIZER.encode(e.prompt), TOKENIZER.encode(e.reply)
    return prompt + reply, [0.0] * len(prompt) + e.weights


def loss(model, batch: Batch) -> torch.Tensor:
    """Weighted next-token cross-entropy; the weight stands with the token that is predicted."""
    x = model(batch.ids, batch.mask, batch.positions)
    w = batch.weights[:, 1:].reshape(-1)
    keep = w > 0
    logits = model.logits(x[:, :-1].reshape(-1, x.shape[-1])[keep])
    each = F.cross_entropy(logits, batch.ids[:, 1:].reshape(-1)[keep], reduction="none")
    return (each * w[keep]).sum() / w.sum()


def train_agent(name: str, folder: Path, state_folder: Path, steps: int, seed: int) -> dict:
    """Train one agent from its speciality and write its checkpoint and card; resumes from `state_folder`."""
    rng = np.random.default_rng([seed, *name.encode()])
    stream = ExampleStream(SPECIALITIES[name], rng)
    model = TinyLM(TinyConfig(), seed=seed)
    rest: list[tuple[list[int], list[float]]] = []

    def next_loss(model: TinyLM) -> torch.Tensor:
        while len(rest) < 160:
            rest.append(encode(next(stream)))
        batch, used = pack(rest, ROWS)
        del rest[:used]
        return loss(model, batch)

    def get_state() -> dict:
        return {"rng": json.dumps(rng.bit_generator.state), "rest": rest}

    def set_state(state: dict) -> None:
        rng.bit_generator.state = json.loads(state["rng"])
        rest[:] = state["rest"]

    seconds = fit(model, next_loss, (get_state, set_state), steps, state_folder / f"{name}.pt", f"{name}, seed {seed}")
    card = {"name": name, "speciality": asdict(SPECIALITIES[name]), "steps": steps, "seed": seed,
            "rows": ROWS, "row_tokens": ROW, "weak_weight": WEAK, "cpu_seconds": round(seconds),
            "parameters": sum(p.numel() for p in model.parameters()), "torch": torch.__version__}
    model.save(folder, name, card)
    return card
