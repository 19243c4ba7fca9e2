"""A very small world for tests: random agents and coordinators, and pools that follow a script."""

import functools
from pathlib import Path

import numpy as np

from trinity_mini.backbone import Backbone
from trinity_mini.coordinator import Coordinator
from trinity_mini.pool import EmbeddedPool, Reply
from trinity_mini.presets import Preset
from trinity_mini.roles import PROMPTS, Role
from trinity_mini.tasks import recognise
from trinity_mini.tiny_lm import TOKENIZER, TinyConfig, TinyLM
from trinity_mini.training import TrainingRun

PRESET = Preset(
    "tiny", generations=4, episodes_per_candidate=4, popsize=6, train_per_family=12,
    validate_every=2, validation_per_family=3, common_questions=True, common_draws=True,
)  # fmt: skip

answer_of = functools.cache(lambda prompt: recognise(prompt).answer)


class ScriptedPool:
    """Agent 0 knows everything, agent 1 nothing; as a Verifier, 0 is honest and 1 accepts all.

    lost(agent, question): calls that are lost.
    """

    names, identity = ("wise", "fool"), "scripted"

    def __init__(self, lost=lambda agent, question: False):
        self.lost, self.calls = lost, 0

    async def reply(self, agent, messages):
        self.calls += 1
        question = messages[1]["content"].removeprefix("Question: ")
        if self.lost(agent, question):
            return Reply(None, finish_reason="timeout")
        if messages[0]["content"] == PROMPTS[Role.THINKER]:
            return Reply("a plan")
        if messages[0]["content"] == PROMPTS[Role.WORKER]:
            return Reply(answer_of(question) if agent == 0 else "no idea")
        answers = [m["content"].removeprefix("Worker: ") for m in messages[2:] if m["content"].startswith("Worker: ")]
        right = bool(answers) and answers[-1] == answer_of(question)
        return Reply("ACCEPT" if right or agent == 1 else "REVISE")


def coordinator(n_agents=2, seed=2, d=16, **options):
    model = TinyLM(TinyConfig(d=d, layers=2, heads=2, ff=16), seed=seed)
    return Coordinator(Backbone(model, TOKENIZER), n_agents, **options)


def training(folder, pool=None, seed=1, preset=PRESET, **options):
    pool = pool or ScriptedPool()
    return TrainingRun(Path(folder), coordinator(len(pool.names), **options), pool, preset, seed)


def random_agent(folder, name, seed):
    """A random agent whose replies are short and varied: its embeddings are large."""
    model = TinyLM(TinyConfig(d=16, layers=1, heads=2, ff=16), seed=seed)
    model.model.embed_tokens.weight.data *= 20
    model.save(Path(folder), name, {"name": name})


def random_pool(folder, names=("ada", "bo"), seed=0):
    for i, name in enumerate(names):
        random_agent(folder, name, seed + i)
    return EmbeddedPool(folder)


class LetterPool(EmbeddedPool):
    """An embedded pool whose agents are tables from a prompt to a short reply, with right answers and verdicts
    often enough for chains to matter."""

    def __init__(self, folder, n_agents=3, seed=0):
        self.folder, self.names = Path(folder), [f"agent{a}" for a in range(n_agents)]
        self.identity, self.remember = f"letters {n_agents} {seed}", True
        self.memory, self.asked, self.decoded, self.seed = {}, 0, 0, seed
        from trinity_mini.pool import Batcher

        self._batcher = Batcher(self._run)

    def _run(self, requests):
        for agent, prompt in requests:
            rng = np.random.default_rng([self.seed, agent, *prompt.encode()])
            question = prompt[:-1].split("T")[0].split("W")[0]
            if prompt.endswith("V"):
                said = str(rng.choice(["aa+A", "ab-R", "A", "aa+", " A"]))
            elif prompt.endswith("T"):
                said = str(rng.choice(["p", "q", " p", ""]))
            else:
                said = str(rng.choice([answer_of(question) + " ", " x", "y", ""]))
            self.memory[agent, prompt] = said
        self.asked += len(requests)
        return [self.memory[r] for r in requests]
