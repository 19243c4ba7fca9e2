"""The agents of a pool of real LLMs and the limits of what they may cost, from one TOML file (lesson 11)."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .files import UserError
from .roles import Role

# What our one request to litellm sets itself, or what would hide or multiply requests.
OURS = {
    "model", "messages", "api_base", "base_url", "timeout", "request_timeout", "num_retries", "max_retries", "stream",
    "n", "best_of", "candidate_count", "max_output_tokens", "max_new_tokens", "cache", "caching", "fallbacks",
    "context_window_fallback_dict", "drop_params", "additional_drop_params", "client", "mock_response",
    "mock_tool_calls", "custom_llm_provider",
}  # fmt: skip
LIMITS = ("max_tokens", "max_completion_tokens")  # of a reply: budgets rest on the one that is set
# Other names of both in the bodies of providers, without "_" and in small letters.
_MULTIPLY = {"n", "bestof", "candidatecount", "numpredict", "maxtokens", "maxcompletiontokens", "maxoutputtokens",
             "maxnewtokens", "maxtokenstosample", "mintokens"}  # fmt: skip
_HEADERS = ("extra_headers", "headers", "default_headers", "extra_query")
LARGEST = 10**15  # of a number in a pool file: sums of these fit into sqlite's integers
DEEPEST = 20  # tables within tables
_SECRET_NAME = re.compile(r"key|auth|secret|password|credential|(access|bearer).?token|cookie", re.I)
SECRET = re.compile(
    r"\b(?:(?:pk|rk|xai|pplx|nvapi)-|(?:gsk|hf|r8|ghp)_|AIza|AKIA)[\w\-]{16,}|\bsk-[\w\-]{6,}|\b[Bb]earer\s+\S+"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LIKE_A_KEY = re.compile(r"(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}")  # what errors do not repeat, beside SECRET
_QUERY = re.compile(r"[?&][^=&]*(key|token|sig|signature|code|secret|auth|pass)[^=&]*=", re.I)


@dataclass(frozen=True)
class Agent:
    """One LLM. Prices are money per million tokens: None = litellm's own table, where it has none "unknown".

    `parameters` go to the provider as they are; `roles` holds what differs in a role. `deadline` is in seconds and
    for a whole reply, retries included. `attempts`: how many requests of a call may be paid; what costs nothing (429,
    503, no connection) is tried until the deadline, unless attempts = 1. `api_base` may be several servers of the
    same model. `merge_turns` joins the system message and consecutive user messages, for chat templates that refuse
    them (Gemma, Mistral).
    """

    name: str
    model: str
    api_base: str | tuple[str, ...] | None = None
    api_key_env: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    roles: Mapping[Role, Mapping[str, Any]] = field(default_factory=dict)
    price_in: float | None = None
    price_out: float | None = None
    concurrency: int = 8
    deadline: float = 120.0
    attempts: int = 4
    merge_turns: bool = False

    def __post_init__(self) -> None:
        where = f"agent {self.name!r}" if isinstance(self.name, str) else "an agent"
        _text(self.name, "the name of an agent")
        _text(self.model, f"{where}: model")
        if isinstance(self.api_base, list):
            object.__setattr__(self, "api_base", tuple(self.api_base))
        bases = self.api_base if isinstance(self.api_base, tuple) else (self.api_base,)
        for base in [b for b in bases if b is not None] if bases else [""]:
            _no_secret(base, f"{where}: api_base")
            if not isinstance(base, str) or not re.match(r"(https?|tiny)://[^\s@]+\Z", base):
                raise UserError(f"{where}: api_base must be an address such as http://localhost:8001/v1.")
        env = self.api_key_env
        if env is not None and not _is_variable(env):
            raise UserError(f"{where}: api_key_env must be the NAME of an environment variable, not the key itself.")
        _parameters(self.parameters, f"{where}: parameters")
        if not isinstance(self.roles, Mapping):
            raise UserError(f"{where}: roles must be tables, e.g. [agent.roles.verifier].")
        for role, changed in self.roles.items():
            if not isinstance(role, Role):
                raise UserError(f"{where}: a role must be one of worker, thinker, verifier.")
            _parameters(changed, f"{where}: roles.{role.name.lower()}")
        if any(set(LIMITS) <= set(self.parameters_in(role)) for role in (None, *Role)):
            raise UserError(f"{where}: give max_tokens or max_completion_tokens, the same one in every role.")
        for name in ("price_in", "price_out"):
            if getattr(self, name) is not None:
                _number(getattr(self, name), f"{where}: {name}", 0)
        if (self.price_in is None) != (self.price_out is None):
            raise UserError(f"{where}: give price_in and price_out together, or neither.")
        _number(self.deadline, f"{where}: deadline", 0, above=True)
        _whole(self.concurrency, f"{where}: concurrency")
        _whole(self.attempts, f"{where}: attempts")
        if not isinstance(self.merge_turns, bool):
            raise UserError(f"{where}: merge_turns must be true or false.")

    @property
    def bases(self) -> tuple[str | None, ...]:
        return self.api_base if isinstance(self.api_base, tuple) else (self.api_base,)

    def parameters_in(self, role: Role | None) -> dict[str, Any]:
        """Sampling and provider parameters of a call in a role (None: a call in no role)."""
        return {**self.parameters, **(self.roles.get(role, {}) if role is not None else {})}

    def max_tokens(self, role: Role | None) -> int | None:
        """The longest reply in tokens, None if the parameters set no limit."""
        p = self.parameters_in(role)
        return p.get("max_tokens", p.get("max_completion_tokens"))

    def key(self) -> str | None:
        """The API key, from the environment.

        Raises: UserError if the variable is not set.
        """
        if self.api_key_env is None:
            return None
        if not (value := os.environ.get(self.api_key_env, "").strip()):
            name = self.api_key_env if self.api_key_env.isupper() else "named by api_key_env"  # the rest may be a key
            raise UserError(f"agent {self.name!r}: set the environment variable {name} to its API key.")
        return value


@dataclass(frozen=True)
class Budget:
    """What one folder of replies may cost in all, resumed runs included; None = no limit.

    money: in the unit of the prices. tokens: of prompts and replies. calls: requests sent, retries included.
    lost_share: the pool stops when a larger share of its calls was lost (after at least 20).
    """

    money: float | None = None
    tokens: int | None = None
    calls: int | None = None
    lost_share: float = 0.1

    def __post_init__(self) -> None:
        if self.money is not None:
            _number(self.money, "budget: money", 0)
        for name in ("tokens", "calls"):
            if getattr(self, name) is not None:
                _whole(getattr(self, name), f"budget: {name}", 0, LARGEST)
        _number(self.lost_share, "budget: lost_share", 0)
        if self.lost_share > 1:
            raise UserError("budget: lost_share must be between 0 and 1.")


@dataclass(frozen=True)
class PoolFile:
    agents: tuple[Agent, ...]
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", tuple(self.agents))
        if not self.agents:
            raise UserError("a pool needs at least one [[agent]].")
        names = [a.name for a in self.agents]
        if doubled := next((n for n in names if names.count(n) > 1), None):
            raise UserError(f"two agents are named {doubled!r}: give each its own name.")


def read_pool_file(path: Path) -> PoolFile:
    """The agents and the budget of a TOML file; the README of lesson 11 shows one.

    Raises: UserError for anything unknown, of a wrong type, or that looks like a key, and for a key that is not set.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"cannot read {path} ({e.strerror or e}): give the path of a pool file.") from None
    except ValueError as e:  # TOML and UTF-8
        raise UserError(f"{path} is not a TOML file ({_redacted(str(e))}): mend that line.") from None
    except RecursionError:
        raise UserError(f"{path}: tables or lists lie too deep in each other: write them flat.") from None
    try:
        _known(table, {"agent", "budget"}, "the file")
        agents, budget = table.get("agent", []), table.get("budget", {})
        if not isinstance(agents, list) or not all(isinstance(a, dict) for a in agents):
            raise UserError("write each agent under [[agent]].")
        if not isinstance(budget, dict):
            raise UserError("write the limits under [budget].")
        _known(budget, {f.name for f in fields(Budget)}, "[budget]")
        pool_file = PoolFile(tuple(_agent(a, i) for i, a in enumerate(agents)), Budget(**budget))
        _keys(pool_file.agents)
    except UserError as e:
        raise UserError(f"{path}: {_redacted(str(e))}") from None
    return pool_file


def _keys(agents: Sequence[Agent]) -> None:
    """UserError that names each key that is not set."""
    missing = []
    for agent in agents:
        try:
            agent.key()
        except UserError as e:
            missing.append(str(e).rstrip("."))
    if missing:
        raise UserError("; ".join(missing) + ".")


def _agent(table: dict[str, Any], i: int) -> Agent:
    where = f"agent {table.get('name', i + 1)!r}"
    for name in table:
        if name not in {f.name for f in fields(Agent)} and _SECRET_NAME.search(name):
            raise UserError(f"{where}: keys do not belong in a file: give the NAME of a variable as api_key_env.")
    _known(table, {f.name for f in fields(Agent)}, where)
    if missing := [n for n in ("name", "model") if n not in table]:
        raise UserError(f"{where}: {missing[0]} is missing.")
    roles = table.get("roles", {})
    if isinstance(roles, dict):
        _known(roles, {r.name.lower() for r in Role}, f"{where}: roles")
        roles = {Role[name.upper()]: changed for name, changed in roles.items()}
    return Agent(**{**table, "roles": roles})


def _known(table: Mapping[str, Any], names: set[str], where: str) -> None:
    if unknown := [n for n in table if n not in names]:
        raise UserError(f"{where}: unknown entry {unknown[0]!r}; known are {', '.join(sorted(names))}.")


def _text(value: Any, where: str) -> None:
    _no_secret(value, where)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where} must be a text that is not empty.")
    if not value.isprintable():
        raise UserError(f"{where} must have no control characters.")


def _is_variable(value: Any) -> bool:
    """A name of an environment variable and not a key: long ones have an underscore."""
    if not isinstance(value, str) or not _VARIABLE.match(value) or SECRET.search(value):
        return False
    return len(value) < 20 or "_" in value


def _number(value: Any, where: str, low: float, above: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where} must be a number.")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where} must be a number.")
    if value > LARGEST:
        raise UserError(f"{where} must be at most 10^15.")
    if value < low or (above and value == low):
        raise UserError(f"{where} must be {'above' if above else 'at least'} {low}.")


def _whole(value: Any, where: str, low: int = 1, high: int = 10**9) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UserError(f"{where} must be a whole number from {low} to {high}.")


def _parameters(value: Any, where: str) -> None:
    """Parameters that are plain JSON, hold no secret and do not set what we set.

    max_tokens must be a whole number: budgets rest on it.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"{where} must be a table, e.g. {{ temperature = 0.1, max_tokens = 4096 }}.")
    for name in value:
        if name in OURS:
            raise UserError(f"{where}: {name} is set by trinity_mini: take it out.")
        if name in _HEADERS:
            raise UserError(f"{where}: {name} may hold a key: take it out, and name a variable as api_key_env.")
    for name in LIMITS:
        if name in value:
            _whole(value[name], f"{where}: {name}")
    _plain(value, where)
    if "extra_body" in value:
        _body(value["extra_body"], f"{where}: extra_body")


def _body(value: Any, where: str) -> None:
    """Refuse what would change behind our back how long or how many the replies are."""
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        if name in OURS or name.replace("_", "").lower() in _MULTIPLY:
            raise UserError(f"{where}: {name} would circumvent the budget: take it out; max_tokens is a parameter.")
        _body(inner, where)


def _plain(value: Any, where: str, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise UserError(f"{where[:80]}: tables or lists lie too deep in each other: write them flat.")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise UserError(f"{where}: the name of a parameter must be a text.")
            if _SECRET_NAME.search(name):
                raise UserError(f"{where}: {name!r} may hold a key: name its environment variable as api_key_env.")
            _plain(inner, f"{where}.{name}", depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            _plain(inner, where, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where} must be a number.")
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise UserError(f"{where} must be a number of at most 63 bits.")
    elif value is not None and not isinstance(value, str | bool | int | float):
        raise UserError(f"{where} must be a text, a number, true, false, a list or a table.")
    _no_secret(value, where)


def _no_secret(value: Any, where: str) -> None:
    if isinstance(value, str) and (SECRET.search(value) or _QUERY.search(value)):
        raise UserError(f"{where} looks like a key: put it in an environment variable and name that as api_key_env.")


def _redacted(text: str) -> str:
    """An error without what may be a key, on one line."""
    return printable(_LIKE_A_KEY.sub("...", SECRET.sub("...", text)))


def printable(text: str) -> str:
    """A text without control characters, which could rewrite a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
