"""Everything that may be said about some questions, each conversation once (lessons 08 and 09).

The embedded agents are deterministic, so what follows a conversation depends on the chosen agent and role alone.
With the SLM as pretrained (a head without SVF) its states can be kept, too: an episode is then a walk over numbers,
and the expected reward J of a policy, with its derivatives, is a sum without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from .backbone import Backbone
from .episode import Decision, Transcript, Turn
from .head import N_ROLES
from .pool import EmbeddedPool, as_reply, tiny_prompt
from .roles import Role, accepts
from .tasks import Question, grade

UNKNOWN, WRONG, RIGHT = -1, -2, -3  # of a child: not played yet; the episode ended with reward 0; with reward 1
Policy = Callable[[Tensor], tuple[Tensor, Tensor]]  # states (N, d) -> agent (N, L), role (N, 3) probabilities


class EpisodeTree:
    """Conversations about given questions; two that read alike are one. Nodes are numbered as they are met.

    features: (nodes, d) float32, what the head reads (`Backbone.features`); turn: (nodes,) turns played so far;
    question: (nodes,) index of the question, whose own node has the same number.
    child: (nodes, L, 3) the node after an agent spoke in a role, or UNKNOWN, WRONG, RIGHT.
    """

    def __init__(self, backbone: Backbone, pool: EmbeddedPool, asked: Sequence[Question], max_turns: int = 5) -> None:
        self.backbone, self.pool, self.asked, self.max_turns = backbone, pool, list(asked), max_turns
        self.n_agents = len(pool.names)
        self.transcripts: list[Transcript] = []
        self.size = 0
        self.features = torch.empty(0, backbone.d)
        self.turn, self.question = np.empty(0, dtype=int), np.empty(0, dtype=int)
        self.child = np.empty((0, self.n_agents, N_ROLES), dtype=np.int64)
        self._known: dict[tuple, int] = {}
        self._add([(i, Transcript(q.prompt)) for i, q in enumerate(self.asked)])

    def grow(self, nodes: np.ndarray, agents: np.ndarray, roles: np.ndarray) -> None:
        """Play the turns (node, agent, role), (N,) each, that were not played yet."""
        todo = np.unique(np.stack((nodes, agents, roles), axis=1)[self.child[nodes, agents, roles] == UNKNOWN], axis=0)
        # In the last turn only a Worker can change the reward: what the others would say is not asked.
        idle = (self.turn[todo[:, 0]] == self.max_turns - 1) & (todo[:, 2] != Role.WORKER)
        for n, a, r in todo[idle].tolist():
            right = grade(self.asked[self.question[n]], self.transcripts[n].answer)
            self.child[n, a, r] = RIGHT if right else WRONG
        turns = [(n, a, Role(r)) for n, a, r in todo[~idle].tolist()]
        prompts = [tiny_prompt(self.transcripts[n].messages(r)) for n, _, r in turns]
        texts = self.pool.speak([(a, p) for (_, a, _), p in zip(turns, prompts, strict=True)])
        after, new = [], {}
        for (n, a, r), prompt, text in zip(turns, prompts, texts, strict=True):
            reply = as_reply(text, r if r == Role.VERIFIER else None, prompt)
            before = self.transcripts[n]
            longer = Transcript(before.question, (*before.turns, Turn(a, r, reply, Decision(a, r))))
            i = int(self.question[n])
            accepted = r == Role.VERIFIER and before.answer is not None and accepts(reply.text)
            if accepted or len(longer.turns) == self.max_turns:
                self.child[n, a, r] = RIGHT if grade(self.asked[i], longer.answer) else WRONG
                continue
            key = _key(i, longer)
            if key not in self._known:
                new.setdefault(key, (i, longer))
            after.append((n, a, r, key))
        self._add(list(new.values()))
        for n, a, r, key in after:
            self.child[n, a, r] = self._known[key]

    def grow_all(self) -> EpisodeTree:
        """Play every turn of every conversation."""
        first = 0
        while first < self.size:
            nodes = np.arange(first, self.size)
            first = self.size
            grid = np.meshgrid(nodes, np.arange(self.n_agents), np.arange(N_ROLES), indexing="ij")
            self.grow(*(axis.ravel() for axis in grid))
        return self

    def play(
        self, choose: Callable[[Tensor, np.ndarray, int], tuple[np.ndarray, np.ndarray]], questions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Episodes on questions (B,) by index, all at once.

        choose(states (N, d), rows (N,), turn): agents and roles (N,) for the episodes `rows` that still run.
        Returns: rewards (B,); nodes, agents, roles (B, max_turns), -1 after the end.
        """
        b = len(questions)
        rewards = np.full(b, np.nan)
        nodes, agents, roles = (np.full((b, self.max_turns), -1) for _ in range(3))
        at, rows = np.asarray(questions).copy(), np.arange(b)
        for t in range(self.max_turns):
            a, r = choose(self.features[torch.from_numpy(at)], rows, t)
            nodes[rows, t], agents[rows, t], roles[rows, t] = at, a, r
            if (self.child[at, a, r] == UNKNOWN).any():
                self.grow(at, a, r)
            after = self.child[at, a, r]
            rewards[rows[after == RIGHT]], rewards[rows[after == WRONG]] = 1.0, 0.0
            rows, at = rows[after >= 0], after[after >= 0]
            if not len(rows):
                break
        return rewards, nodes, agents, roles

    def expected_reward(self, policy: Policy, dtype: torch.dtype = torch.float64) -> Tensor:
        """J of each question, (questions,): the sum over all conversations, without noise; differentiable.

        Needs `grow_all`. Raises: ValueError if a turn was not played.
        """
        if (self.child[: self.size] == UNKNOWN).any():
            raise ValueError("the tree has turns that were not played: call grow_all() first.")
        agent, role = policy(self.features.to(dtype))
        p = (agent[:, :, None] * role[:, None, :]).flatten(1)
        child = torch.from_numpy(self.child).flatten(1)
        value: dict[int, Tensor] = {}
        ends = torch.tensor([1.0, 0.0], dtype=p.dtype)  # at -2 and -1 of each turn's values: RIGHT and WRONG
        later, position = ends, torch.empty(self.size, dtype=torch.long)
        for t in range(self.max_turns - 1, -1, -1):
            nodes = torch.from_numpy(np.flatnonzero(self.turn == t))
            to = child[nodes]
            inside = to >= 0
            index = torch.where(inside, position[to.clamp(min=0)], len(later) - 2 + (to == WRONG).long())
            value[t] = (p[nodes] * later[index]).sum(1)
            position[nodes] = torch.arange(len(nodes))
            later = torch.cat((value[t], ends))
        return value[0]

    def _add(self, new: list[tuple[int, Transcript]]) -> None:
        if not new:
            return
        h = self.backbone.hidden([self.backbone.render(t) for _, t in new])
        start, self.size = self.size, self.size + len(new)
        if self.size > len(self.features):
            room = self.size * 3 // 2
            self.features = torch.cat((self.features[:start], torch.zeros(room - start, self.backbone.d)))
            self.turn = np.concatenate((self.turn[:start], np.full(room - start, -1)))
            self.question = np.concatenate((self.question[:start], np.full(room - start, -1)))
            more = np.full((room - start, self.n_agents, N_ROLES), UNKNOWN)
            self.child = np.concatenate((self.child[:start], more))
        self.features[start : self.size] = self.backbone.features(h)
        for k, (i, transcript) in enumerate(new, start=start):
            self.turn[k], self.question[k] = len(transcript.turns), i
            self._known[_key(i, transcript)] = k
            self.transcripts.append(transcript)


def _key(question: int, transcript: Transcript) -> tuple:
    return question, *((t.role, t.reply.text) for t in transcript.turns)
