"""Agents, replies and pools; the embedded pool of tiny language models (lesson 01)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .files import DATA, UserError
from .roles import PROMPTS, Role

Message = Mapping[str, str]
MAX_REPLY = 44  # tokens; the longest verifier's working of this world has 43
ROWS = 256  # prompts of one batch at most


@dataclass(frozen=True)
class Reply:
    """What an agent said. `cost` None means unknown, never 0; `text` None means that the call was lost."""

    text: str | None
    usage: Mapping[str, int] = field(default_factory=dict)
    cost: float | None = None
    finish_reason: str = "stop"

    @property
    def lost(self) -> bool:
        return self.text is None


class Pool(Protocol):
    """A set of agents that answer chat messages; agents are known by index only."""

    names: Sequence[str]
    identity: str  # changes when an agent changes

    async def reply(self, agent: int, messages: Sequence[Message]) -> Reply: ...


def drawn(pool: Pool, *index: int) -> Pool:
    """The pool as one episode asks it. Agents that answer by chance give a fresh sample for each index; the same index
    gives the same replies again. The embedded agents have one reply to everything."""
    return pool.draw(index) if hasattr(pool, "draw") else pool


class Batcher:
    """Gathers what is asked for in one tick of the event loop and answers it as one batch.

    All coroutines that are ready ask before the batch runs, so episodes move in step where replies are instant,
    and a slow reply elsewhere holds up one episode only.
    """

    def __init__(self, run: Callable[[list], Sequence]) -> None:
        self.run = run
        self.waiting: dict[asyncio.AbstractEventLoop, list[tuple[Any, asyncio.Future]]] = {}  # by running loop

    def __call__(self, item: Any) -> Awaitable[Any]:
        loop = asyncio.get_running_loop()
        if loop not in self.waiting:
            self.waiting[loop] = []
            loop.call_soon(self._flush, loop)
        future = loop.create_future()
        self.waiting[loop].append((item, future))
        return future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        batch = [(item, future) for item, future in self.waiting.pop(loop) if not future.done()]
        try:
            results: Sequence = self.run([item for item, _ in batch]) if batch else []
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results for a batch of {len(batch)}")
        except Exception as e:
            for _, future in batch:
                future.set_exception(e)
            return
        except BaseException:  # Ctrl-C: out through the event loop, and nobody is left waiting
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), result in zip(batch, results, strict=True):
            future.set_result(result)


class EmbeddedPool:
    """Tiny language models of our own, read from data/tiny_pool; greedy, so that replies can be remembered."""

    def __init__(self, folder: Path = DATA / "tiny_pool", remember: bool = True) -> None:
        from .tiny_lm import TinyLM

        self.folder = Path(folder)
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise UserError(f"{self.folder} holds no agents: run `python -m trinity_mini make-pool`.")
        loaded = [TinyLM.load(self.folder, f.stem) for f in files]
        self.models = [model for model, _ in loaded]
        self.cards = [card for _, card in loaded]
        self.names = [f.stem for f in files]
        self.identity = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]
        self.remember = remember
        self.memory: dict[tuple[int, str], str] = {}
        self.asked = self.decoded = 0
        self._batcher = Batcher(self._run)

    async def reply(self, agent: int, messages: Sequence[Message]) -> Reply:
        """The agent's reply to a conversation rendered by `Transcript.messages`."""
        prompt = tiny_prompt(messages)
        text = await self._batcher((agent, prompt))
        role = Role.VERIFIER if prompt.endswith("V") else None
        return as_reply(text, role, prompt)

    def speak(self, requests: Sequence[tuple[int, str]]) -> list[str]:
        """Raw continuations of (agent, rendered prompt) pairs, e.g. `2r1` for (3, `(3*6-3)%7T15%7.W`)."""
        return self._run(list(requests))

    def _run(self, requests: list[tuple[int, str]]) -> list[str]:
        from .tiny_lm import TOKENIZER, greedy

        self.asked += len(requests)
        new = [r for r in dict.fromkeys(requests) if r not in self.memory]
        self.decoded += len(new)
        fresh: dict[tuple[int, str], str] = {}
        for agent, model in enumerate(self.models):
            mine = sorted((r for r in new if r[0] == agent), key=lambda r: len(r[1]))
            for batch in _batches(mine):
                prompts = [TOKENIZER.encode(text) for _, text in batch]
                replies = greedy(model, prompts, TOKENIZER.ids["."], MAX_REPLY)
                fresh.update(zip(batch, map(TOKENIZER.decode, replies), strict=True))
        if self.remember:
            self.memory.update(fresh)
            return [self.memory[r] for r in requests]
        return [fresh[r] for r in requests]


def _batches(requests: Sequence[tuple[int, str]]) -> Iterator[Sequence[tuple[int, str]]]:
    """Requests, the shortest first, in batches of at most ROWS: fewer where prompts are long, since all are padded to
    the longest, and attention takes memory by its square. A prompt has no more tokens than characters."""
    from .tiny_lm import PAIRS

    start = 0
    for end, (_, prompt) in enumerate(requests):
        if end - start == ROWS or (end > start and (end - start + 1) * len(prompt) ** 2 > PAIRS):
            yield requests[start:end]
            start = end
    if requests:
        yield requests[start:]


def tiny_prompt(messages: Sequence[Message]) -> str:
    """The chat template of the tiny agents: messages to one line of text.

    The system message names the role; of the turns, the latest plan and the latest answer are read. A label
    counts only at the start of a message, and each message is one turn, so no text can pose as another's turn.

    Raises: ValueError for a conversation that `Transcript.messages` did not write.
    """
    from .templates import prompt_text

    role = next((r for r, prompt in PROMPTS.items() if messages and messages[0]["content"] == prompt), None)
    if role is None or len(messages) < 2:
        raise ValueError("a tiny agent reads a system message with a role prompt, then the question.")
    latest: dict[str, str] = {}
    for m in messages[2:]:
        label, _, text = m["content"].partition(": ")
        latest[label] = text
    asked, _, question = messages[1]["content"].partition(": ")
    if asked != "Question":
        raise ValueError("a tiny agent reads a system message with a role prompt, then the question.")
    return prompt_text(role, question, latest.get(Role.THINKER.label), latest.get(Role.WORKER.label))


def as_reply(text: str, role: Role | None, prompt: str) -> Reply:
    """A raw continuation as the reply of a role: a Verifier says its verdict first."""
    from .templates import verdict_text
    from .tiny_lm import TOKENIZER

    said = len(TOKENIZER.encode(text))
    usage = {"prompt_tokens": len(TOKENIZER.encode(prompt)), "completion_tokens": said}
    reason = "stop" if said < MAX_REPLY else "length"
    return Reply(verdict_text(text) if role == Role.VERIFIER else text, usage, 0.0, reason)
