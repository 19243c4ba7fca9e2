"""Pool files: what they hold arrives, and what cannot be meant is refused in one sentence, keys above all."""

import dataclasses

import pytest

from trinity_mini.files import ROOT, UserError
from trinity_mini.llm_agents import Agent, Budget, PoolFile, read_pool_file
from trinity_mini.roles import Role

EXAMPLE = """
[budget]
money = 5.0
calls = 20000
lost_share = 0.1

[[agent]]
name = "gemma"
model = "openai/google/gemma-3-27b-it"
api_base = "http://localhost:8001/v1"
api_key_env = "VLLM_KEY"
parameters = { temperature = 0.1, max_tokens = 4096 }
price_in = 0.1
price_out = 0.3
concurrency = 16
[agent.roles.verifier]
max_tokens = 512

[[agent]]
name = "plain"
model = "gpt-5"
"""
AGENT = '[[agent]]\nname = "a"\nmodel = "openai/m"\n'
SECRET = "sk-" + "proj-4f9a8b7c6d5e4f3a2b1c"  # made up


def read(folder, text):
    path = folder / "pool.toml"
    path.write_text(text, encoding="utf-8")
    return read_pool_file(path)


def test_the_example_arrives(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_KEY", "a local key")
    pool_file = read(tmp_path, EXAMPLE)
    gemma, plain = pool_file.agents
    assert pool_file.budget == Budget(money=5.0, tokens=None, calls=20000, lost_share=0.1)
    assert (gemma.name, gemma.model, gemma.api_base) == (
        "gemma", "openai/google/gemma-3-27b-it", "http://localhost:8001/v1",
    )  # fmt: skip
    assert (gemma.price_in, gemma.price_out, gemma.concurrency) == (0.1, 0.3, 16)
    assert gemma.key() == "a local key" and "a local key" not in repr(pool_file)
    assert gemma.parameters_in(Role.WORKER) == gemma.parameters_in(None) == {"temperature": 0.1, "max_tokens": 4096}
    assert gemma.parameters_in(Role.VERIFIER) == {"temperature": 0.1, "max_tokens": 512}
    assert [gemma.max_tokens(r) for r in (*Role, None)] == [4096, 4096, 512, 4096]
    assert (plain.price_in, plain.concurrency, plain.deadline, plain.attempts) == (None, 8, 120.0, 4)
    assert (plain.merge_turns, plain.key(), plain.max_tokens(None), plain.bases) == (False, None, None, (None,))


def test_several_servers(tmp_path):
    agent = read(tmp_path, AGENT + 'api_base = ["http://a/v1", "http://b/v1"]').agents[0]
    assert agent.bases == ("http://a/v1", "http://b/v1")


BAD = {
    "no toml": ("[[agent", "not a TOML file"),
    "no agent": ("[budget]\nmoney = 1", "at least one"),
    "agent as table": ('[agent]\nname = "a"\nmodel = "m"', r"\[\[agent\]\]"),
    "unknown at the top": ("agents = 3\n" + AGENT, "unknown entry 'agents'"),
    "unknown in an agent": (AGENT + "temprature = 1", "unknown entry 'temprature'"),
    "unknown in the budget": (AGENT + "[budget]\neuros = 1", "unknown entry 'euros'"),
    "budget no table": ("budget = 3\n" + AGENT, r"\[budget\]"),
    "unknown role": (AGENT + "[agent.roles.judge]\nmax_tokens = 3", "unknown entry 'judge'"),
    "roles no table": (AGENT + "roles = 3", "roles must be tables"),
    "no name": ('[[agent]]\nmodel = "m"', "name is missing"),
    "no model": ('[[agent]]\nname = "m"', "model is missing"),
    "empty name": ('[[agent]]\nname = " "\nmodel = "m"', "name of an agent must be a text"),
    "name no text": ('[[agent]]\nname = 3\nmodel = "m"', "name of an agent must be a text"),
    "model no text": ('[[agent]]\nname = "a"\nmodel = ["m"]', "model must be a text"),
    "doubled name": (AGENT + AGENT, "two agents are named 'a'"),
    "no address": (AGENT + 'api_base = "localhost:8000"', "api_base must be an address"),
    "no servers": (AGENT + "api_base = []", "api_base must be an address"),
    "password in the address": (AGENT + 'api_base = "http://me:word@host/v1"', "api_base must be an address"),
    "key in the address": (AGENT + 'api_base = "http://host/v1?api_key=abc"', "looks like a key"),
    "parameters no table": (AGENT + "parameters = 3", "must be a table"),
    "ours": (AGENT + "parameters = { num_retries = 3 }", "num_retries is set by trinity_mini"),
    "streams": (AGENT + "parameters = { stream = true }", "stream is set by trinity_mini"),
    "many samples": (AGENT + "parameters = { n = 3 }", "n is set by trinity_mini"),
    "hidden": (AGENT + "parameters = { drop_params = true }", "drop_params is set by trinity_mini"),
    "nan": (AGENT + "parameters = { temperature = nan }", "must be a number"),
    "nested nan": (AGENT + "parameters = { a = { b = [1.0, inf] } }", "must be a number"),
    "a date": (AGENT + "parameters = { a = 2026-01-01 }", "must be a text, a number"),
    "max_tokens a text": (AGENT + 'parameters = { max_tokens = "9" }', "max_tokens must be a whole number"),
    "max_tokens 0": (AGENT + "[agent.roles.worker]\nmax_tokens = 0", "max_tokens must be a whole number"),
    "price nan": (AGENT + "price_in = nan\nprice_out = 1", "price_in must be a number"),
    "price negative": (AGENT + "price_in = -1\nprice_out = 1", "at least 0"),
    "one price": (AGENT + "price_in = 1", "together"),
    "concurrency true": (AGENT + "concurrency = true", "concurrency must be a whole number"),
    "concurrency 0": (AGENT + "concurrency = 0", "concurrency must be a whole number"),
    "attempts 1.5": (AGENT + "attempts = 1.5", "attempts must be a whole number"),
    "deadline 0": (AGENT + "deadline = 0", "above 0"),
    "deadline inf": (AGENT + "deadline = inf", "deadline must be a number"),
    "merge no bool": (AGENT + "merge_turns = 1", "true or false"),
    "money nan": (AGENT + "[budget]\nmoney = nan", "money must be a number"),
    "money a text": (AGENT + '[budget]\nmoney = "5"', "money must be a number"),
    "calls 1.5": (AGENT + "[budget]\ncalls = 1.5", "calls must be a whole number"),
    "tokens negative": (AGENT + "[budget]\ntokens = -1", "tokens must be a whole number"),
    "lost share": (AGENT + "[budget]\nlost_share = 1.5", "between 0 and 1"),
    "max_tokens in the body": (AGENT + "parameters = { extra_body = { max_tokens = 9 } }", "would circumvent"),
    "many in the body": (AGENT + "parameters = { max_tokens = 9, extra_body = { n = 5 } }", "would circumvent"),
    "deep in the body": (AGENT + "parameters = { extra_body = { c = { maxOutputTokens = 9 } } }", "would circumvent"),
    "dropped": (AGENT + 'parameters = { additional_drop_params = ["max_tokens"] }', "is set by trinity_mini"),
    "best of many": (AGENT + "[agent.roles.worker]\nbest_of = 5", "best_of is set by trinity_mini"),
    "two limits": (AGENT + "parameters = { max_tokens = 1, max_completion_tokens = 9 }", "same one in every role"),
    "two limits in a role": (
        AGENT + "parameters = { max_tokens = 1 }\n[agent.roles.worker]\nmax_completion_tokens = 9",
        "same one in every role",
    ),
    "headers": (AGENT + 'parameters = { extra_headers = { X-Me = "1" } }', "extra_headers may hold a key"),
    "max_tokens too large": (AGENT + "parameters = { max_tokens = 99999999999999999999 }", "whole number from 1 to"),
    "calls too large": (AGENT + "[budget]\ncalls = 1000000000000000000000", "whole number from 0 to"),
    "tokens too large": (AGENT + "[budget]\ntokens = 1000000000000000000000", "whole number from 0 to"),
    "price beyond floats": (AGENT + f"price_in = 1{'0' * 400}\nprice_out = 1", r"at most 10\^15"),
    "a parameter beyond json": (AGENT + f"parameters = {{ seed = 0x{'f' * 5000} }}", "at most 63 bits"),
    "nested": (AGENT + f"parameters = {{ a = {'[' * 3000}{']' * 3000} }}", "too deep"),
    "dotted": (AGENT + f"parameters.{'.'.join('a' * 900)} = 1", "too deep"),
    "escapes in a name": ('[[agent]]\nname = "a\\u001b[31m\\n"\nmodel = "m"', "no control characters"),
    "escapes in a parameter": (AGENT + 'parameters = { "a\\n\\u001b" = nan }', "must be a number"),
    "variable not set": (AGENT + 'api_key_env = "TRINITY_NOT_SET"', "TRINITY_NOT_SET"),
    "variable no name": (AGENT + 'api_key_env = "no name"', "NAME of an environment variable"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_meant_is_refused(tmp_path, case):
    text, message = BAD[case]
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path, text)
    said = str(error.value)
    assert said.isprintable() and said.endswith(".") and "pool.toml" in said


HEX = "a1b2c3d4e5f60718" + "293a4b5c6d7e8f90"
KEYS = {
    "hex as variable": f'api_key_env = "{HEX}"',
    "letters as variable": 'api_key_env = "qwertzuiopasdfghjklyxcvbnm"',
    "with underscores as variable": f'api_key_env = "my_{HEX}"',
    "hex as entry": f'"{HEX}" = 1',
    "hex as parameter": f'parameters = {{ "{HEX}" = nan }}',
    "hex in a header": f'parameters = {{ extra_headers = {{ X-Me = "{HEX}" }} }}',
    "in a body": f'parameters = {{ extra_body = {{ x_auth = "{HEX}" }} }}',
    "hex in the address": f'api_base = "http://host/v1?sig={HEX}"',
    "twice": f'"{SECRET}" = 1\n"{SECRET}" = 2',
    "as an entry's name": f'"{SECRET}" = 1',
    "as variable": f'api_key_env = "{SECRET}"',
    "as entry": f'api_key = "{SECRET}"',
    "as parameter": f'parameters = {{ api_key = "{SECRET}" }}',
    "as a value": f'parameters = {{ user = "{SECRET}" }}',
    "in a header": f'parameters = {{ extra_headers = {{ Authorization = "Bearer {SECRET}" }} }}',
    "in a header's value": f'parameters = {{ extra_headers = {{ X-Me = "Bearer {SECRET}" }} }}',
    "in a list": f'parameters = {{ stop = ["{SECRET}"] }}',
    "in a role": f'[agent.roles.worker]\nuser = "{SECRET}"',
    "as api_base": f'api_base = "{SECRET}"',
    "in a list of servers": f'api_base = ["http://{SECRET}/v1"]',
    "google's": 'parameters = { user = "AIzaSyA1234567890abcdefghijklmnop" }',
    "as broken toml": f'parameters = {{ user = "{SECRET}"',
}


@pytest.mark.parametrize("case", KEYS)
def test_a_key_is_refused_and_not_repeated(tmp_path, case):
    with pytest.raises(UserError) as error:
        read(tmp_path, AGENT + KEYS[case])
    assert "sk-proj" not in str(error.value) and "AIza" not in str(error.value)
    assert HEX not in str(error.value) and "qwertz" not in str(error.value)


def test_names_of_models_are_no_keys():
    for model in (
        "openai/skywork-13b-something-long",
        "openai/hf-internal-testing-model-x",
        "openai/sklearn-like-model",
    ):
        Agent("a", model)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_pool_file(tmp_path / "none.toml")


@pytest.mark.parametrize("path", sorted((ROOT / "data" / "pools").glob("*.toml")), ids=lambda p: p.name)
def test_the_pool_files_that_are_shipped_are_legal(monkeypatch, path):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, "x")
    assert read_pool_file(path).agents


def test_agents_made_in_code_are_checked_too():
    with pytest.raises(UserError, match="a role must be"):
        Agent("a", "m", roles={"worker": {}})
    with pytest.raises(UserError, match="at least one"):
        PoolFile(())
    agent = Agent("a", "m")
    with pytest.raises(dataclasses.FrozenInstanceError):
        agent.model = "other"
