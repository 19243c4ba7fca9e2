"""The embedded agents as a provider of litellm, `tiny/ada` to `tiny/eli`: the whole way of a paid call, for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from .episode import Transcript, run
from .pool import EmbeddedPool, Message, Reply
from .roles import Role

if TYPE_CHECKING:
    from .llm_agents import PoolFile

PROVIDER = "tiny"
# An agent's api_base names the weights, not a server; so a remembered reply of other weights is never taken for theirs.
ADDRESS = "http://tiny.invalid/"
PRICES = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost")


@cache
def _pool() -> EmbeddedPool:
    return EmbeddedPool()


def address() -> str:
    """Which weights answer for the embedded agents."""
    return ADDRESS + _pool().identity


def register() -> None:
    """Make litellm know `tiny/NAME`; again and again is as once. Imports litellm.

    The agents are greedy: temperature and its like change nothing, and a reply ends where the embedded pool's does.
    """
    import litellm
    from litellm.utils import custom_llm_setup

    if any(p["provider"] == PROVIDER for p in litellm.custom_provider_map):
        return
    litellm.custom_provider_map.append({"provider": PROVIDER, "custom_handler": _handler()})
    custom_llm_setup()
    free = {"litellm_provider": PROVIDER, "mode": "chat", **dict.fromkeys(PRICES, 0.0)}
    litellm.register_model({f"{PROVIDER}/{name}": dict(free) for name in _pool().names})


def tiny_pool_file() -> PoolFile:
    """The embedded agents as agents of an `LLMPool`, without limits on money, tokens or calls."""
    from .llm_agents import Agent, Budget, PoolFile

    agents = [
        Agent(name, f"{PROVIDER}/{name}", api_base=address(), price_in=0.0, price_out=0.0, concurrency=256)
        for name in _pool().names
    ]
    return PoolFile(tuple(agents), Budget())


async def _answer(model: str, messages: Sequence[Message], api_base: str | None) -> Reply:
    """What the agent `model` replies; a lone message is a question to it as a Worker.

    Raises: CustomLLMError 404, 409 or 400, as a server would.
    """
    from litellm.llms.custom_llm import CustomLLMError

    pool = _pool()
    if model not in pool.names:
        raise CustomLLMError(404, f"no embedded agent {model}: choose {', '.join(pool.names)}.")
    if api_base and api_base != ADDRESS + pool.identity:
        raise CustomLLMError(409, f"{api_base} names other weights than data/tiny_pool holds: use tiny_pool_file().")
    if len(messages) == 1:
        messages = Transcript(messages[0]["content"]).messages(Role.WORKER)
    try:
        return await pool.reply(pool.names.index(model), messages)
    except ValueError as e:
        raise CustomLLMError(400, str(e)) from None


def _handler() -> Any:
    """litellm's interface; its base class exists only once litellm is imported."""
    from litellm.llms.custom_llm import CustomLLM

    class TinyHandler(CustomLLM):
        async def acompletion(self, model, messages, api_base, *, model_response, **others):  # what litellm passes
            return _fill(model_response, model, await _answer(model, messages, api_base))

        def completion(self, model, messages, api_base, *, model_response, **others):
            return _fill(model_response, model, run(_answer(model, messages, api_base)))

    return TinyHandler()


def _fill(response: Any, model: str, reply: Reply) -> Any:
    """litellm's response with the reply and its true usage."""
    from litellm.types.utils import Usage

    response.model = f"{PROVIDER}/{model}"
    response.choices[0].message.content = reply.text
    response.choices[0].finish_reason = reply.finish_reason
    response.usage = Usage(**reply.usage, total_tokens=sum(reply.usage.values()))
    return response
