"""What a request costs: an agent's own prices, else those of litellm's local table (lesson 11)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .llm_agents import Agent

# Parameters with which a request costs more than its tokens at the usual price.
DEARER = {"service_tier", "web_search_options", "tools", "plugins", "speed", "inference_geo"}


class Price(tuple[float, float]):
    """Money per million tokens (in, out); `tiers`: (tokens, in, out) for prompts of so many tokens or more."""

    tiers: tuple[tuple[int, float, float], ...] = ()


def prices(agent: Agent) -> Price | None:
    """The agent's own price, else that of litellm's local table, else None.

    The table's zeros count as unknown; for a free model give price_in = 0 and price_out = 0. So does what has further
    prices: a fee for each request or search, dearer reasoning, a service tier, tools.
    """
    if agent.price_in is not None and agent.price_out is not None:
        return Price((agent.price_in, agent.price_out))
    try:
        from .llm_calls import load

        litellm = load()
        known = dict(litellm.get_model_info(agent.model))
        known |= litellm.model_cost.get(known.get("key"), {})  # which has more prices
        found = Price(float(known[f"{way}_cost_per_token"]) * 1e6 for way in ("input", "output"))
        found.tiers = _tiers(known, found)
        further = _further_prices(agent, known)
    except Exception:  # litellm raises many kinds for a model that it does not know
        return None
    return found if any(found) and not further else None


def _tiers(known: Mapping[str, Any], low: Price) -> tuple[tuple[int, float, float], ...]:
    """The dearer prices of long prompts; a way without one of its own keeps the low price."""
    form = r"\w+put_cost_per_token_above_(\d+)k_tokens"
    limits = {int(m[1]) for name, v in known.items() if v is not None and (m := re.fullmatch(form, name))}

    def price(way: str, limit: int, otherwise: float) -> float:
        dearer = known.get(f"{way}_cost_per_token_above_{limit}k_tokens")
        return otherwise if dearer is None else float(dearer) * 1e6

    return tuple((1000 * k, price("input", k, low[0]), price("output", k, low[1])) for k in sorted(limits))


def _further_prices(agent: Agent, known: Mapping[str, Any]) -> bool:
    """Whether tokens in and out are not all that a request costs."""
    given = (agent.parameters, *agent.roles.values())
    bodies = [p["extra_body"] for p in given if isinstance(p.get("extra_body"), Mapping)]
    asked = set().union(*given, *bodies)
    if asked & DEARER or any(name.startswith("cache_control") for name in asked) or known.get("tiered_pricing"):
        return True
    # Chat models list a price of searches too, which are made only where a request asks for them.
    searches = known.get("litellm_provider") == "perplexity" or "search" in agent.model
    if searches and known.get("search_context_cost_per_query"):
        return True
    fees = ("input_cost_per_request", "citation_cost_per_token", "input_cost_per_second", "output_cost_per_second")
    if any(known.get(name) for name in fees):
        return True
    return (known.get("output_cost_per_reasoning_token") or 0) > known["output_cost_per_token"] * 1.000001


def cost(price: Sequence[float], prompt: int, completion: int) -> float:
    """The money for a request with so many tokens, at a Price or a plain (in, out)."""
    into, out = next((t[1:] for t in reversed(getattr(price, "tiers", ())) if prompt >= t[0]), price)
    return (prompt * into + completion * out) / 1e6


def cost_of(usage: Mapping[str, int], price: Sequence[float] | None) -> float | None:
    """The money for the usage that a reply reports, None where that or the price is unknown."""
    return cost(price, usage["prompt_tokens"], usage["completion_tokens"]) if usage and price is not None else None
