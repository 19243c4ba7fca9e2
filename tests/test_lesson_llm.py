"""What lesson 11 builds in plain cells is the package's; its prose quotes what it printed; its exercises fit."""

import random
import re
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest
from lesson import NOTEBOOKS, definitions
from llm_server import Server as FailingServer
from test_notebooks import is_checked, output_text

from trinity_mini import checks_llm, llm_calls, llm_outcomes, llm_prices
from trinity_mini.episode import Episode, Transcript, Turn, run
from trinity_mini.ledger import ledger
from trinity_mini.llm_agents import Agent, Budget, PoolFile
from trinity_mini.llm_cache import ReplyCache, digest, question
from trinity_mini.llm_estimate import estimate
from trinity_mini.llm_outcomes import Outcome
from trinity_mini.llm_pool import LLMPool
from trinity_mini.pool import EmbeddedPool, Reply
from trinity_mini.roles import Role
from trinity_mini.tasks import Question, question_set

NAME = "11_real_models.ipynb"


@pytest.fixture(scope="module")
def lesson():
    return definitions(
        NAME, "Handler", "Server", "says", "last", "WAYS", "outcome_of", "pauses", "cache_key", "transcript_cost",
        "total_interval", "TURNS", "turn_by_turn", "freely",
    )  # fmt: skip


def as_object(value):
    """JSON as litellm hands it on: entries by attribute."""
    if isinstance(value, dict):
        return SimpleNamespace(**{k: as_object(v) for k, v in value.items()})
    return [as_object(v) for v in value] if isinstance(value, list) else value


class HTTPError(Exception):
    def __init__(self, status):
        super().__init__("no")
        self.status_code, self.litellm_response_headers = status, {}


class Timeout(Exception):
    """Named as litellm's."""


def test_outcomes_are_the_packages(lesson):
    rng, agent = np.random.default_rng(), Agent("a", "openai/m")
    for _ in range(20):
        for _, status, reply, _ in checks_llm._cases(rng):
            if status == 200:
                theirs = llm_outcomes.read(as_object(reply), agent, {}, None).kind
            else:
                theirs = llm_outcomes.failure(Timeout() if status is None else HTTPError(status)).kind
            assert lesson.outcome_of(status, reply) == theirs, (status, reply)


def test_outcomes_through_litellm_and_the_lessons_server(lesson):
    """The server of the lesson, as the lesson asks it, against the function of the exercise."""
    llm_calls.load()
    server = lesson.Server(lambda body: lesson.WAYS[lesson.last(body)])
    agent = Agent("toy", "openai/toy", server.base)
    try:
        for i, (way, (status, _, reply)) in enumerate(lesson.WAYS.items(), 1):
            outcome = run(llm_calls.request(agent, Transcript(way).messages(Role.WORKER), {}, 20))
            assert outcome.kind == lesson.outcome_of(status, reply), way
            assert len(server.arrived) == i
    finally:
        server.shutdown()
        server.server_close()


def test_pauses_are_the_pools(lesson, tmp_path):
    rng = np.random.default_rng()
    with LLMPool(PoolFile((Agent("a", "tiny/ada"),)), tmp_path) as pool:
        for _ in range(20):
            asked = [None if a < 1 else float(a) for a in rng.uniform(0, 40, 9) * (rng.random(9) < 0.5)]
            chance = random.Random()
            chance.setstate(pool._rng.getstate())
            u = [chance.random() for _ in asked]
            theirs = [pool._pause(k, Outcome("failed", retry_after=a)) for k, a in enumerate(asked)]
            assert lesson.pauses(asked, u, 0.0, 1e9) == pytest.approx(theirs[:-1])


def test_the_pool_gives_up_where_the_exercise_does(lesson, tmp_path):
    """Against a real server that always fails: as many requests as there are pauses, and one."""

    def planned(agent, seconds):
        with LLMPool(PoolFile((agent,)), tmp_path / agent.name) as pool:
            chance = random.Random()
            chance.setstate(pool._rng.getstate())
        return lesson.pauses([None] * 9, [chance.random() for _ in range(9)], seconds, agent.deadline)

    llm_calls.load()
    with FailingServer(lambda body, n: "500") as server:
        agents = [Agent(f"a{i}", "openai/m", server.base, attempts=9, deadline=2.5) for i in range(20)]
        clear = [a for a in agents if len(planned(a, 0.0)) == len(planned(a, 0.3))]  # however slow this machine is
        with LLMPool(PoolFile((clear[0],), Budget(lost_share=1)), tmp_path / clear[0].name) as pool:
            assert run(pool.reply(0, Transcript("x").messages(Role.WORKER))).lost
        assert server.count == len(planned(clear[0], 0.0)) + 1 > 2


def test_keys_tell_apart_what_the_package_tells_apart(lesson):
    def theirs(request, draw):
        rest = {k: v for k, v in request.items() if k not in ("model", "messages", "api_key", "metadata")}
        return digest(question(request["model"], None, request["messages"], rest, draw))

    for alike, a, first, b, second, _ in checks_llm._pairs(np.random.default_rng()):
        assert (theirs(a, first) == theirs(b, second)) == alike
        assert (lesson.cache_key(a, first) == lesson.cache_key(b, second)) == alike


def test_the_bill_is_the_ledgers(lesson, tmp_path):
    prices = {"ada": (3.0, 15.0), "bo": (0.0, 0.0), "cy": None}
    used = {"prompt_tokens": 1234, "completion_tokens": 56}
    for i, turns in enumerate((
        [("ada", used), ("bo", used)], [("bo", used)], [("ada", used), ("cy", used)], [("ada", used), ("ada", {})],
    )):  # fmt: skip
        cache = ReplyCache(tmp_path / f"{i}.sqlite")
        for k, (agent, usage) in enumerate(turns):
            sent = cache.send(f"call {k}", "{}", agent, "worker", 0, None, 100, Budget())
            cost = llm_prices.cost_of(usage, prices[agent])
            cache.came(sent, Outcome("answered", "text", usage, cost), True)
        cache.close()
        theirs = ledger(tmp_path / f"{i}.sqlite").cost.iloc[-1]
        mine = lesson.transcript_cost(turns, prices)
        assert (mine is None and theirs is None) or mine == pytest.approx(theirs)


def test_the_lower_end_is_the_packages_where_cheap_episodes_have_the_tail(lesson):
    """The package takes the lower of two ends: of lognormal amounts, and Student's, as in the exercise."""
    costs = np.array([10.0, 11.0, 9.0, 10.5, 0.02, 9.5, 10.2, 9.8])
    q = Question("math", "infix", "1", "1", "")
    pilot = [Episode(q, (Turn(0, Role.WORKER, Reply("1", {}, float(c))),), "1", False, 1.0) for c in costs]
    theirs = estimate(pilot, 200, ["a"], level=0.9).iloc[-1]
    total, low, high = lesson.total_interval(costs, 200, 0.9)
    assert theirs.cost == pytest.approx(total)
    assert theirs.low <= low * (1 + 1e-9) and theirs.high >= total and low < total < high
    even = [Episode(q, (Turn(0, Role.WORKER, Reply("1", {}, 2.0)),), "1", False, 1.0) for _ in range(8)]
    theirs = estimate(even, 200, ["a"]).iloc[-1]
    assert lesson.total_interval(np.full(8, 2.0), 200, 0.9) == pytest.approx((theirs.cost, theirs.low, theirs.high))


def test_with_and_without_a_barrier_the_conversations_are_the_same(lesson):
    pool, asked = EmbeddedPool(), question_set("test", 5, seed=1)
    answers = run(lesson.turn_by_turn(pool, asked))
    assert answers == run(lesson.freely(pool, asked)) and len(set(answers)) > 3
    assert lesson.TURNS == 5


# ---- the stored notebook -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(NOTEBOOKS / NAME, as_version=4)


def words_of(notebook):
    return "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")


def test_the_prose_quotes_checked_numbers_only(notebook):
    outputs = "\n".join(output_text(c) for c in notebook.cells if c.cell_type == "code" and is_checked(c))
    printed = set(re.findall(r"\d+\.\d+", outputs))
    prose = re.sub(
        r"arXiv \d+\.\d+|[Ee]xercise \d+\.\d|^11\.\d .*|[Gg]emini 2\.5|<details>.*?</details>", "", words_of(notebook),
        flags=re.DOTALL | re.MULTILINE,
    )  # fmt: skip
    assert [n for n in re.findall(r"\d+\.\d+", prose) if n not in printed] == []


def test_size_and_folds(notebook):
    assert 60 <= len(notebook.cells) <= 95
    for cell in notebook.cells:
        if cell.cell_type == "code" and "nbgrader" not in cell.metadata:
            assert sum(bool(line.strip()) for line in cell.source.splitlines()) <= 16, cell.source
    words = words_of(notebook)
    assert words.count("<details>") == words.count("</details>") == 5 + 3
    assert words.count("What do you expect") >= 6
    graded = [c.metadata["nbgrader"]["points"] for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade")]
    assert graded == [2, 3, 3, 2, 2]


def test_every_figure_has_words_for_those_who_cannot_see_it(notebook):
    shown = [o for c in notebook.cells if c.cell_type == "code" for o in c.get("outputs", [])]
    pictures = [o for o in shown if "image/png" in o.get("data", {})]
    assert len(pictures) >= 12
    assert all(o.metadata.get("image/png", {}).get("alt") for o in pictures)


def test_no_output_holds_a_path_or_a_port(notebook):
    text = "\n".join(output_text(c) for c in notebook.cells if c.cell_type == "code")
    assert not re.search(r"/tmp/|/var/|[A-Z]:\\|site-packages|127\.0\.0\.1|localhost", text)


def test_sources_are_named(notebook):
    """Live, computed, recorded or quoted: each section with figures says which."""
    sections = re.split(r"^## (?=\d+ )", words_of(notebook), flags=re.MULTILINE)[1:]
    assert len(sections) == 11
    for section in sections:
        assert re.search(r"\bLive\b|[Cc]omputed|[Rr]ecorded|[Qq]uoted", section), section[:60]


def test_shares_are_shares_and_commands_exist(notebook):
    from trinity_mini.__main__ import parser

    quoted = definitions(NAME, "SHARES", "TOKENS")
    assert quoted.SHARES.keys() == quoted.TOKENS.keys()
    assert all(sum(share) <= 100 for share in quoted.SHARES.values())
    commands = re.findall(r"`python -m trinity_mini ([^`]+)`", words_of(notebook))
    assert {c.split()[0] for c in commands} == {"pool", "estimate", "train", "evaluate", "serve"}
    for command in commands:
        parser().parse_args(command.split())
