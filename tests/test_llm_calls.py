"""One request is one request, ends in time, and whatever comes back is a typed outcome that holds no key."""

import asyncio
import time
from email.utils import formatdate

import pytest
from llm_server import Server, text_of

from trinity_mini import llm_calls, llm_outcomes, llm_prices
from trinity_mini.llm_agents import Agent
from trinity_mini.llm_outcomes import Outcome
from trinity_mini.roles import PROMPTS, Role

MESSAGES = [{"role": "system", "content": PROMPTS[Role.WORKER]}, {"role": "user", "content": "Question: 1+1"}]
USAGE = {"prompt_tokens": 20, "completion_tokens": 5}
COST = (20 * 3 + 5 * 7) / 1e6  # at prices of 3 and 7 a million
KEY = "key-of-a-test-0123456789"


@pytest.fixture(scope="module")
def server():
    llm_calls.load()
    with Server() as server:
        yield server


@pytest.fixture
def ask(server, monkeypatch):
    monkeypatch.setenv("TEST_CREDENTIAL", KEY)

    def ask(kind, seconds=20.0, messages=MESSAGES, parameters=None, **settings):
        server.behave = lambda body, n: kind
        settings = {"api_base": server.base, "api_key_env": "TEST_CREDENTIAL"} | settings
        agent = Agent("a", "openai/m", parameters=parameters or {"max_tokens": 64}, **settings)
        return asyncio.run(llm_calls.request(agent, messages, agent.parameters, seconds, price=(3.0, 7.0)))

    return ask


# kind of the server -> what must be recorded
OUTCOMES = {
    "ok": {"kind": "answered", "usage": USAGE, "cost": COST, "finish_reason": "stop", "model": "m"},
    "length": {"kind": "length", "text": "a part", "usage": USAGE, "cost": COST, "finish_reason": "length"},
    "length_empty": {"kind": "length", "text": None, "usage": USAGE, "cost": COST, "retryable": False},
    "none": {"kind": "empty", "text": None, "usage": USAGE, "cost": COST, "retryable": True},
    "no_choices": {"kind": "empty", "text": None, "usage": USAGE, "cost": COST, "retryable": True},
    "filter": {"kind": "filtered", "text": None, "usage": USAGE, "cost": COST, "retryable": False},
    "no_usage": {"kind": "answered", "usage": {}, "cost": None},
    "other_model": {"kind": "answered", "model": "a-cheaper-model", "usage": USAGE},
    "big_usage": {"kind": "answered", "usage": {}, "cost": None},
    "escapes": {"kind": "answered", "model": "m?[31m??"},
    "huge": {"kind": "length", "text": "x" * 16 * 64, "finish_reason": "length", "usage": USAGE},
    "surrogate": {"kind": "answered", "text": "half ? a pair"},
    "wrong_usage": {"kind": "answered", "usage": {}, "cost": None},
    "text_usage": {"kind": "failed", "cost": None, "free": False, "retryable": False},
    "odd_content": {"kind": "failed", "cost": None, "free": False, "retryable": False},
    "invalid_json": {"kind": "failed", "cost": None, "free": False, "retryable": True},
    "html": {"kind": "failed", "cost": None, "free": False, "retryable": True},
    "reset": {"kind": "failed", "cost": None, "free": False, "retryable": True},
    "429 7": {"kind": "failed", "free": True, "retryable": True, "retry_after": 7.0},
    "500": {"kind": "failed", "free": True, "retryable": True, "retry_after": None},
    "503": {"kind": "failed", "free": True, "retryable": True},
    "529": {"kind": "failed", "free": True, "retryable": True},
    # A gateway that left: the model behind it may have answered, and that is paid.
    "408": {"kind": "timed_out", "free": False, "retryable": True},
    "502": {"kind": "failed", "free": False, "retryable": True},
    "504": {"free": False, "retryable": True},
    "520": {"kind": "failed", "free": False, "retryable": True},
    "522": {"kind": "failed", "free": False, "retryable": True},
    "524": {"kind": "failed", "free": False, "retryable": True},
    "400": {"kind": "refused", "free": True, "retryable": False, "fatal": False},
    "422": {"kind": "refused", "free": True, "retryable": False, "fatal": False},
    "401": {"kind": "refused", "free": True, "fatal": True},
    "402": {"kind": "refused", "free": True, "fatal": True},
    "403": {"kind": "refused", "free": True, "fatal": True},
    "404": {"kind": "refused", "free": True, "fatal": True},
    "quota": {"kind": "refused", "free": True, "fatal": True, "retryable": False},
    "credit": {"kind": "refused", "free": True, "fatal": True, "retryable": False},
    "minute": {"kind": "failed", "free": True, "fatal": False, "retryable": True, "retry_after": 0.4},
    "flagged": {"kind": "filtered", "free": True, "fatal": False, "retryable": False},
    "thoughts": {"kind": "answered", "usage": {"prompt_tokens": 20, "completion_tokens": 4005}},
}


@pytest.mark.parametrize("kind", OUTCOMES)
def test_each_way_to_answer_is_one_request_and_one_outcome(server, ask, kind):
    before = server.count
    outcome = ask(kind)
    assert server.count == before + 1
    assert {k: getattr(outcome, k) for k in OUTCOMES[kind]} == OUTCOMES[kind]
    assert (outcome.text is not None) == outcome.usable
    assert outcome.usable or outcome.error
    assert KEY not in repr(outcome)  # the server's errors repeat the header that holds it


def test_the_server_gets_what_was_asked_and_the_key(server, ask):
    outcome = ask("ok", parameters={"max_tokens": 9, "temperature": 0.5, "seed": 3})
    body = server.bodies[-1]
    assert body["messages"] == MESSAGES and outcome.text == text_of(body)
    assert (body["model"], body["max_tokens"], body["temperature"], body["seed"]) == ("m", 9, 0.5, 3)
    assert server.headers[-1]["authorization"] == f"bearer {KEY}"


def test_an_address_without_a_key_gets_none_of_the_environments(server, ask, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "another-secret-of-mine")
    assert ask("ok", api_key_env=None).usable
    assert server.headers[-1]["authorization"] == "bearer none"


def test_a_key_that_is_not_set_is_fatal_and_nothing_is_sent(server, ask):
    before = server.count
    outcome = ask("ok", api_key_env="TRINITY_NOT_SET")
    assert outcome.fatal and "TRINITY_NOT_SET" in outcome.error and server.count == before


@pytest.mark.parametrize(
    ("model", "parameters", "word"),
    [("nobody/m", {}, "provider/model"), ("gpt-5", {"temperature": 0}, "parameter"), ("gpt-4o", {}, "key")],
)
def test_what_litellm_itself_refuses_is_fatal_and_names_the_remedy(monkeypatch, model, parameters, word):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    agent = Agent("a", model, parameters=parameters)
    outcome = asyncio.run(llm_calls.request(agent, MESSAGES, parameters, 10))
    assert outcome.kind == "refused" and outcome.fatal and word in outcome.error


@pytest.mark.parametrize("kind", ["hang", "drip"])
def test_the_deadline_is_hard_and_the_connection_is_closed(server, ask, kind):
    gone, start = server.gone, time.monotonic()
    outcome = ask(kind, seconds=0.5)
    assert outcome.kind == "timed_out" and not outcome.free and outcome.cost is None
    assert 0.4 < time.monotonic() - start < 2
    while server.gone == gone and time.monotonic() - start < 5:
        time.sleep(0.01)
    assert server.gone == gone + 1


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
def test_what_breaks_within_is_a_failed_outcome(ask, monkeypatch, error):
    def broken(*_, **__):
        raise error("odd")

    monkeypatch.setattr(llm_calls, "failure" if error is RuntimeError else "_ask", broken)
    if error is RuntimeError:
        monkeypatch.setattr(llm_calls, "read", broken)
    else:

        async def cancelled(*_):
            raise asyncio.CancelledError

        monkeypatch.setattr(llm_calls, "_ask", cancelled)
    outcome = ask("ok")
    assert outcome.kind == "failed" and outcome.error and not outcome.free


def test_nobody_listens(ask):
    outcome = ask("ok", api_base="http://127.0.0.1:9/v1")
    assert (outcome.kind, outcome.retryable, outcome.cost) == ("failed", True, None)


def test_retry_after_is_read_in_its_three_forms():
    read = llm_outcomes._retry_after
    assert read({"retry-after": "2.5"}) == 2.5 and read({"retry-after-ms": "300"}) == 0.3
    assert 28 < read({"retry-after": formatdate(time.time() + 30, usegmt=True)}) <= 30
    assert read({"retry-after": formatdate(time.time() - 30, usegmt=True)}) == 0
    for odd in ("inf", "nan", "1e999", "Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "9" * 5000):
        assert read({"retry-after": odd}) is read({"retry-after-ms": odd}) is None
    assert read({"retry-after": "soon"}) is read({}) is read(None) is None


def test_prices_are_the_agents_or_litellms_table():
    import litellm

    assert llm_prices.prices(Agent("a", "openai/m", price_in=0.0, price_out=0.0)) == (0, 0)
    assert llm_prices.prices(Agent("a", "openai/nobody-knows-it")) is None
    price = llm_prices.prices(Agent("a", "gpt-4o-mini"))
    wanted = sum(litellm.cost_per_token("gpt-4o-mini", prompt_tokens=1234, completion_tokens=567))
    assert llm_prices.cost_of({"prompt_tokens": 1234, "completion_tokens": 567}, price) == pytest.approx(wanted)
    assert llm_prices.prices(Agent("a", "gpt-4o-mini", parameters={"service_tier": "priority"})) is None
    assert llm_prices.prices(Agent("a", "gpt-4o-mini", roles={Role.WORKER: {"web_search_options": {}}})) is None
    assert llm_prices.prices(Agent("a", "perplexity/sonar")) is None  # a fee for each search
    assert llm_prices.prices(Agent("a", "perplexity/sonar", price_in=1.0, price_out=2.0)) == (1, 2)
    table = litellm.model_cost
    dearer = [
        name for name, row in table.items()
        if row.get("mode") == "chat"
        and (row.get("output_cost_per_reasoning_token") or 0) > 1.01 * (row.get("output_cost_per_token") or 0)
    ]  # fmt: skip
    assert dearer and {llm_prices.prices(Agent("a", name)) for name in dearer} == {None}
    assert llm_prices.prices(Agent("a", "dashscope/qwen-flash")) is None  # prices in steps
    assert llm_prices.cost_of({}, price) is llm_prices.cost_of(USAGE, None) is None


def test_costs_are_litellms_also_of_long_prompts():
    import litellm

    llm_calls.load()
    chat = {name: row for name, row in litellm.model_cost.items() if row.get("mode") == "chat"}
    stepped = [name for name, row in chat.items() if any("_above_" in k for k in row)]
    compared = 0
    for name in [*stepped[::3], *list(chat)[::80]]:
        price = llm_prices.prices(Agent("a", name))
        for n, k in ((1234, 567), (150_000, 1000), (300_000, 2000), (600_000, 10)) if price is not None else ():
            mine = llm_prices.cost_of({"prompt_tokens": n, "completion_tokens": k}, price)
            try:
                theirs = sum(litellm.cost_per_token(name, prompt_tokens=n, completion_tokens=k))
            except litellm.exceptions.BadRequestError:  # a row without a provider
                continue
            compared += bool(price.tiers)
            assert mine == pytest.approx(theirs) or "off_peak_pricing" in chat[name] and mine > theirs, name
    assert compared > 150


def test_the_bound_of_tokens_is_above_any_tokenizers(server):
    """litellm's own count, of texts that tokenize badly."""
    import litellm

    for text in ("plain words of a question", "\U0001f9ea\u4e2d\u6587 \u0950" * 50, "x" * 500, "!@#$%^&*()" * 30):
        messages = [{"role": "user", "content": text}]
        prompt, completion = llm_calls.most_tokens(messages, 77)
        assert litellm.token_counter(model="gpt-4o", messages=messages) <= prompt and completion == 77


def test_nothing_of_the_environments_keys_stays_in_a_text(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "abcdef123456")
    monkeypatch.setenv("ODD_NAME", "qwertz12345")
    text = "ABCDEF123456 and abcdef123456, qwertz12345, sk-1234567890"
    assert llm_calls.redact(text, "ODD_NAME", None) == "[key] and [key], [key], [key]"


def test_merged_turns_alternate():
    turns = [*MESSAGES, {"role": "user", "content": "Worker: 2"}]
    one = f"{PROMPTS[Role.WORKER]}\n\nQuestion: 1+1\n\nWorker: 2"
    assert llm_calls.merged(turns) == [{"role": "user", "content": one}]
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert llm_calls.merged(said) == said
    assert llm_calls.role_of(MESSAGES) == Role.WORKER and llm_calls.role_of(said) is llm_calls.role_of([]) is None


def test_a_response_of_any_shape_is_read():
    """What other providers' adapters might hand over: nothing raises."""
    agent = Agent("a", "m")
    for response in (None, object(), type("R", (), {"choices": [object()], "usage": 3, "model": None})()):
        assert isinstance(llm_outcomes.read(response, agent, {}, None), Outcome)
