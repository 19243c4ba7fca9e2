"""The pool: asked once and kept, retried within a deadline, never over budget, from any event loop."""

import asyncio
import multiprocessing
import sqlite3
import threading
import time
from contextlib import closing

import pytest
from llm_server import Server

from trinity_mini import llm_cache, llm_calls, llm_pool
from trinity_mini.episode import run
from trinity_mini.files import UserError
from trinity_mini.ledger import as_text, ledger
from trinity_mini.llm_agents import Agent, Budget, PoolFile
from trinity_mini.llm_cache import ReplyCache, Spent, digest, question
from trinity_mini.llm_pool import LLMPool, PoolStopped
from trinity_mini.roles import PROMPTS, Role

KEY = "key-of-a-test-0123456789"


def messages(text, role=Role.WORKER):
    return [{"role": "system", "content": PROMPTS[role]}, {"role": "user", "content": f"Question: {text}"}]


def kind_in_the_question(body, n):
    """`once 500` fails the first time only."""
    kind = body["messages"][-1]["content"].removeprefix("Question: ").split("|")[0]
    if kind.startswith("once "):
        return kind.removeprefix("once ") if n == 0 else "ok"
    return kind if kind[0].islower() or kind[0].isdigit() else "ok"


@pytest.fixture(scope="module")
def shared_server():
    llm_calls.load()
    with Server(kind_in_the_question) as server:
        yield server


@pytest.fixture
def server(shared_server):
    shared_server.seen.clear()
    shared_server.count = shared_server.most_out = 0
    shared_server.bodies.clear()
    return shared_server


@pytest.fixture
def pool(server, tmp_path, monkeypatch):
    """pool(budget=..., **settings of its agent): opened pools are closed at the end."""
    monkeypatch.setenv("TEST_CREDENTIAL", KEY)
    monkeypatch.setattr(llm_pool, "FIRST_PAUSE", 0.05)
    opened = []

    def make(budget=None, folder="run", agents=None, **settings):
        settings = {"price_in": 1.0, "price_out": 2.0, "parameters": {"max_tokens": 50}} | settings
        one = Agent("a", "openai/m", server.base, "TEST_CREDENTIAL", **settings)
        opened.append(LLMPool(PoolFile(tuple(agents or [one]), budget or Budget(lost_share=1)), tmp_path / folder))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


async def replies(pool, texts, agent=0):
    return await asyncio.gather(*[pool.reply(agent, messages(t)) for t in texts], return_exceptions=True)


def test_a_conversation_is_asked_once_ever(pool, server):
    first = pool()
    said = run(replies(first, ["ok|1", "ok|2", "ok|1"]))  # the third while the first is out
    assert server.count == 2 and said[0] == said[2] and said[0].text.startswith("<answer>")
    assert said[0].usage == {"prompt_tokens": 20, "completion_tokens": 5}
    assert said[0].cost == pytest.approx((20 * 1 + 5 * 2) / 1e6)
    assert run(replies(first, ["ok|2", "ok|1"])) == [said[1], said[0]]
    first.close()
    assert run(replies(pool(), ["ok|1", "ok|2"])) == said[:2]  # another process' view: from the file
    assert server.count == 2


def test_what_decides_a_reply_is_in_its_key(pool, server, tmp_path):
    asked = question("m", None, messages("q"), {"t": 1, "s": 2}, ())
    assert asked == question("m", None, messages("q"), {"s": 2, "t": 1}, ())
    others = [
        question("n", None, messages("q"), {"t": 1, "s": 2}, ()),
        question("m", "http://h", messages("q"), {"t": 1, "s": 2}, ()),
        question("m", None, messages("p"), {"t": 1, "s": 2}, ()),
        question("m", None, messages("q", Role.THINKER), {"t": 1, "s": 2}, ()),
        question("m", None, messages("q"), {"t": 1.5, "s": 2}, ()),
        question("m", None, messages("q"), {"t": 1}, ()),
        question("m", None, messages("q"), {"t": 1, "s": 2}, (0,)),
        question("m", None, messages("q"), {"t": 1, "s": 2}, (0, 0)),
    ]
    assert len({digest(a) for a in [asked, *others]}) == 9


def test_draws_are_samples_of_their_own(pool, server):
    p = pool()

    async def ask(index):
        return await p.draw(index).reply(0, messages("ok"))

    for index in [(0, 1), (0, 2), (0, 1), (0, 2), (1,)]:
        assert run(ask(index)).text
    assert server.count == 3
    assert p.draw((3,)).names == p.names == ["a"] and p.draw((3,)).identity == p.identity


def test_parameters_of_a_role_and_merged_turns(pool, server):
    p = pool(roles={Role.VERIFIER: {"max_tokens": 7}}, merge_turns=True)
    run(p.reply(0, messages("ok", Role.VERIFIER)))
    run(p.reply(0, messages("ok", Role.WORKER)))
    assert [b["max_tokens"] for b in server.bodies] == [7, 50]
    assert [len(b["messages"]) for b in server.bodies] == [1, 1]
    assert list(ledger(p.path)["role"]) == ["verifier", "worker", ""]


def test_the_identity_changes_with_what_decides_replies_only(pool, server):
    base = pool(folder="0").identity
    same = [{"price_in": 9.0, "price_out": 9.0}, {"deadline": 3.0}, {"attempts": 1}, {"concurrency": 1}]
    other = [
        {"parameters": {"max_tokens": 51}},
        {"roles": {Role.WORKER: {"temperature": 1}}},
        {"merge_turns": True},
        {"agents": [Agent("b", "openai/m", server.base)]},
        {"agents": [Agent("a", "openai/n", server.base)]},
        {"agents": [Agent("a", "openai/m")]},
    ]
    assert {pool(folder=f"s{i}", **s).identity for i, s in enumerate(same)} == {base}
    assert len({pool(folder=f"o{i}", **s).identity for i, s in enumerate(other)} | {base}) == len(other) + 1


def test_failures_are_tried_again_and_counted_exactly(pool, server):
    p = pool(concurrency=32, attempts=3)
    kinds = ["once 429", "once 500", "once reset", "once invalid_json", "once none", "once no_choices"]
    said = run(replies(p, [*kinds, "502", "400", "filter", "length_empty", "length", "ok"]))
    assert [r.lost for r in said] == [False] * 6 + [True] * 4 + [False] * 2
    assert server.count == 6 * 2 + 3 + 1 + 1 + 1 + 1 + 1
    assert [r.finish_reason for r in said[6:]] == ["failed", "refused", "filtered", "length", "length", "stop"]
    table = ledger(p.path).iloc[-1]
    assert (table["calls"], table["requests"], table["lost"], table["unanswered"]) == (12, 20, 4, 0)
    assert run(replies(p, ["502", "ok"]))[0].lost and server.count == 20  # a lost call stays lost ...
    assert p.forget_lost() == 4
    assert run(replies(p, ["400", "ok"]))[0].lost and server.count == 21  # ... until it is forgotten
    assert ledger(p.path).iloc[-1]["requests"] == 21  # and what was paid for is not


def test_retry_after_is_kept_and_frees_the_slot(pool, server):
    p, order = pool(concurrency=1), []

    async def ask(text):
        await p.reply(0, messages(text))
        order.append(text)

    async def both():
        await asyncio.gather(ask("once 429 1"), ask("ok"))

    start = time.monotonic()
    run(both())
    assert order == ["ok", "once 429 1"] and 1 <= time.monotonic() - start < 4


def test_one_deadline_for_all_attempts(pool, server):
    p = pool(deadline=1.5, concurrency=8, attempts=100)
    run(p.reply(0, messages("ok")))
    start = time.monotonic()
    said = run(replies(p, ["hang", "drip", "500", "429 30", "408", "once 408", "once 500"]))
    assert time.monotonic() - start < 4
    assert [r.lost for r in said] == [True, True, True, True, True, False, False]
    assert server.kinds["429"] >= 1 and server.seen.most_common()[0][1] < 20
    rows = sqlite3.connect(p.path).execute("SELECT seconds FROM requests").fetchall()
    assert max(s for (s,) in rows) < 1.5 + 0.6


def test_as_many_requests_are_out_as_the_agent_allows(pool, server):
    p = pool(concurrency=5)
    run(replies(p, [f"wait 0.05|{i}" for i in range(40)]))
    assert server.most_out == 5 and server.count == 40


def test_connections_are_kept(pool, server):
    """A new one for each request would cost a handshake each time."""
    before = server.connections
    p = pool(concurrency=5)
    run(replies(p, [f"ok|{i}" for i in range(40)]))
    run(replies(p, [f"once 500|{i}" for i in range(5)]))
    assert server.count == 50 and server.connections - before <= 5


def test_many_event_loops_one_after_the_other_and_at_once(pool, server):
    p = pool()
    for i in range(20):
        assert asyncio.run(replies(p, [f"ok|{i} {j}" for j in range(3)]))[0].text
    threads = [threading.Thread(target=lambda i=i: asyncio.run(replies(p, [f"ok|t {i // 2}"]))) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert server.count == 20 * 3 + 3

    async def in_a_cell():
        return run(p.reply(0, messages("ok|cell")))

    assert asyncio.run(in_a_cell()).text


def test_a_busy_coordinator_times_nothing_out(pool, server):
    p = pool(deadline=0.5)

    async def busy():
        reply = asyncio.ensure_future(p.reply(0, messages("wait 0.2")))
        await asyncio.sleep(0.02)
        time.sleep(1)  # as a forward of a large model does
        return await reply

    assert run(busy()).text


@pytest.mark.parametrize("limit", ["calls", "tokens", "money"])
def test_a_budget_is_never_exceeded_and_resumes(pool, server, limit):
    """Bounds of requests that are out are set aside and given back, so the limit is used up but for one bound."""
    prompt, completion = llm_calls.most_tokens(messages("ok|00"), 50)
    budgets = {
        "calls": (Budget(calls=10, lost_share=1), 10),
        "tokens": (Budget(tokens=25 * 9 + prompt + completion, lost_share=1), 10),
        "money": (Budget(money=(30 * 9 + prompt + 2 * completion) / 1e6 + 1e-12, lost_share=1), 10),
    }
    budget, allowed = budgets[limit]
    p = pool(budget, concurrency=8)
    said = run(replies(p, [f"ok|{i:02}" for i in range(30)]))
    assert server.count == allowed == sum(not isinstance(r, Exception) for r in said)
    stopped = [r for r in said if isinstance(r, Exception)]
    assert all(isinstance(r, PoolStopped) and f"budget.{limit}" in str(r) and "resume" in str(r) for r in stopped)
    first = next(i for i, r in enumerate(said) if not isinstance(r, Exception))
    assert run(replies(p, [f"ok|{first:02}"])) == [said[first]]  # what is in the file is still given
    p.close()
    resumed = pool(budget, concurrency=8)
    again = run(replies(resumed, [f"ok|{i:02}" for i in range(30)]))
    resumed.close()
    assert server.count == allowed and sum(not isinstance(r, Exception) for r in again) == allowed
    more = run(replies(pool(Budget(lost_share=1)), [f"ok|{i:02}" for i in range(30)]))
    assert server.count == 30 and [r.text for r in more if r.lost] == []


def test_what_may_have_been_paid_counts(pool, server):
    prompt, completion = llm_calls.most_tokens(messages("reset"), 50)
    p = pool(attempts=1)
    run(replies(p, ["reset", "ok|1", "500"]))
    spent = p.cache.spent()
    assert spent.requests == 3 and spent.tokens == prompt + completion + 25
    assert spent.money == pytest.approx((prompt + 2 * completion + 30) / 1e6)
    table = ledger(p.path).iloc[-1]
    assert table["cost"] == pytest.approx(30 / 1e6) and table["at_most"] == pytest.approx(spent.money)


def test_a_budget_that_cannot_be_held_is_refused(server, tmp_path):
    unknown = Agent("a", "openai/nobody-knows-it", server.base, parameters={"max_tokens": 5})
    with pytest.raises(UserError, match="price_in"):
        LLMPool(PoolFile((unknown,), Budget(money=1)), tmp_path)
    endless = Agent("a", "openai/m", server.base, price_in=1, price_out=1)
    with pytest.raises(UserError, match="max_tokens"):
        LLMPool(PoolFile((endless,), Budget(tokens=1000)), tmp_path)


def test_too_many_lost_calls_stop_the_run_and_are_asked_again(pool, server, monkeypatch):
    texts = [f"ok|{i}" for i in range(17)] + [f"400|{i}" for i in range(10)]
    p = pool(Budget(lost_share=0.1), concurrency=1)
    said = run(replies(p, texts))
    stopped = [r for r in said if isinstance(r, Exception)]
    assert server.count == 20 and "3 of the last 20 calls were lost" in str(stopped[0]) and "refused" in str(stopped[0])
    p.close()
    monkeypatch.setattr(server, "behave", lambda body, n: "ok")  # it recovers
    again = run(replies(pool(Budget(lost_share=0.1)), texts))
    assert all(r.text for r in again) and server.count == 20 + 10  # what was lost is asked again, and nothing else


@pytest.mark.parametrize("kind", ["401", "403", "404", "quota"])
def test_a_useless_agent_stops_the_run_at_once(pool, server, kind):
    p = pool(concurrency=2)
    said = run(replies(p, [kind, *[f"wait 0.3|{i}" for i in range(20)]]))
    assert isinstance(said[0], PoolStopped) and "'a'" in str(said[0]) and KEY not in str(said[0])
    assert str(said[0]).endswith("resume.") and server.count <= 4
    with pytest.raises(PoolStopped):
        run(p.reply(0, messages("ok|new")))


def test_calls_that_nobody_waits_for_are_not_sent(pool, server):
    p = pool(concurrency=2)
    run(p.reply(0, messages("ok|first")))

    async def interrupted():
        asked = [asyncio.ensure_future(p.reply(0, messages(f"wait 0.2|{i}"))) for i in range(20)]
        await asyncio.sleep(0.1)
        for a in asked:
            a.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    run(interrupted())
    assert server.count == 3
    p.close()  # waits for the two that are out: they are paid for
    table = ledger(p.path).iloc[-1]
    assert (table["answered"], table["unanswered"], server.count) == (3, 0, 3)
    assert run(replies(pool(), ["wait 0.2|0", "wait 0.2|1"]))[1].text and server.count == 3
    with pytest.raises(PoolStopped, match="closed"):
        run(p.reply(0, messages("ok|first")))


def test_servers_take_turns_and_stand_in_for_each_other(pool, server):
    with Server() as second:
        bases = (server.base, second.base)
        p = pool(agents=[Agent("a", "openai/m", bases, concurrency=4)])
        run(replies(p, [f"ok|{i}" for i in range(10)]))
        assert (server.count, second.count) == (5, 5)
    said = run(replies(p, [f"ok|down {i}" for i in range(10)]))  # the second is gone
    assert all(r.text for r in said)


def test_check_asks_each_agent_one_question(pool, server):
    good = Agent("good", "openai/m", server.base, parameters={"max_tokens": 5})
    absent = Agent("absent", "openai/m", "http://127.0.0.1:9/v1")
    p = pool(agents=[good, absent])
    for _ in range(2):
        rows = run(p.check())
        assert [r["agent"] for r in rows] == ["good", "absent"]
        assert [(r["agent"], r["outcome"], r["model"]) for r in rows] == [
            ("good", "answered", "m"),
            ("absent", "failed", ""),
        ]
        assert rows[1]["error"] and 0 < rows[0]["seconds"] < 5
    assert server.count == 2 and list(ledger(p.path)["role"]) == ["check", "check", ""]


def test_no_key_is_on_disk_in_logs_or_errors(pool, server, tmp_path, caplog, capfd):
    caplog.set_level("DEBUG")
    p = pool(attempts=1)
    run(replies(p, ["ok", "500", "429", "400", "reset", "invalid_json"]))  # errors repeat the header with the key
    said = run(replies(p, ["401"]))
    text = as_text(ledger(p.path))
    p.close()
    files = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert files and b"[key]" in b"".join(f.read_bytes() for f in files)
    everything = b"".join(f.read_bytes() for f in files) + f"{said}{text}{caplog.text}{capfd.readouterr()}".encode()
    assert KEY.encode() not in everything and b"TEST_CREDENTIAL" not in everything


def test_the_ledger_agrees_with_the_server(pool, server):
    p = pool(folder="priced", attempts=2)
    run(replies(p, ["ok|1", "ok|2", "once 500", "length", "other_model"]))
    run(p.reply(0, messages("ok|1", Role.VERIFIER)))
    verifier, worker, everything = ledger(p.path).to_dict("records")
    assert (worker["agent"], worker["role"], worker["calls"], worker["requests"]) == ("a", "worker", 5, 6)
    assert (worker["answered"], worker["length"], worker["failed"]) == (4, 1, 1)
    assert (worker["prompt_tokens"], worker["completion_tokens"]) == (5 * 20, 5 * 5)
    assert worker["cost"] == worker["at_most"] == pytest.approx(5 * 30 / 1e6)
    assert everything["requests"] == server.count == 7 and everything["calls"] == 6
    unpriced = pool(folder="unpriced", price_in=None, price_out=None)
    run(replies(unpriced, ["ok|1"]))
    table = ledger(unpriced.path)
    assert table["cost"].tolist() == table["at_most"].tolist() == [None, None] and "unknown" in as_text(table)
    run(replies(p, ["no_usage"]))
    assert ledger(p.path).iloc[-1]["cost"] is None


def test_files_that_are_none(pool, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        ledger(tmp_path / "none.sqlite")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "replies.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match="damaged.*another folder"):
        pool()
    with pytest.raises(UserError, match="damaged"):
        ledger(tmp_path / "run" / "replies.sqlite")
    (tmp_path / "run" / "replies.sqlite").unlink()
    with sqlite3.connect(tmp_path / "run" / "replies.sqlite") as db:
        db.execute("CREATE TABLE replies (text TEXT)")
    with pytest.raises(UserError, match="no reply file"):
        pool()


def test_a_file_damaged_in_the_middle_stops_with_a_remedy(pool, server):
    p = pool()
    run(replies(p, [f"ok|{i} {'x' * 500}" for i in range(40)]))
    p.close()
    content = bytearray(p.path.read_bytes())
    content[4096 : len(content)] = b"\xff" * (len(content) - 4096)
    p.path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        said = run(replies(pool(), ["ok|1"]))
        raise said[0]


def test_one_pool_over_a_folder(pool, server, tmp_path):
    """Two would each pay for everything; in this process, in another, and after one that was killed."""
    first = pool()
    with pytest.raises(UserError, match="another process uses these replies.*--out"):
        pool()
    first.close()
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    other = context.Process(target=_hold, args=(tmp_path / "run", out))
    other.start()
    assert out.get(timeout=120) == "open"
    with pytest.raises(UserError, match="another process"):
        pool()
    assert ledger(tmp_path / "run" / "replies.sqlite").iloc[-1]["requests"] == 0  # reading goes on
    other.kill()
    other.join()
    assert run(replies(pool(), ["ok|1"]))[0].text
    assert {f.name[:14] for f in (tmp_path / "run").iterdir()} == {"replies.sqlite"}


def _hold(folder, out):
    LLMPool(PoolFile((Agent("a", "openai/m", "http://127.0.0.1:9/v1"),)), folder)
    out.put("open")
    time.sleep(600)


def test_a_paid_reply_survives_a_lock(pool, server, monkeypatch):
    monkeypatch.setattr(llm_cache, "PATIENCE", 0.1)
    p = pool()
    with closing(sqlite3.connect(p.path, isolation_level=None, check_same_thread=False)) as other:

        def hold():
            while not server.out:
                time.sleep(0.01)
            other.execute("BEGIN IMMEDIATE")
            time.sleep(1)
            other.execute("COMMIT")

        holder = threading.Thread(target=hold)
        holder.start()
        said = run(replies(p, ["wait 0.5"]))
        holder.join()
    assert said[0].text and ledger(p.path).iloc[-1]["answered"] == 1


def test_each_error_of_the_file_has_its_remedy(pool, server, tmp_path, monkeypatch):
    monkeypatch.setattr(llm_cache, "PATIENCE", 0.1)
    p = pool()
    run(replies(p, ["ok|1", "reset"]))
    spent = p.cache.spent()
    p.close()
    with closing(sqlite3.connect(p.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        locked = pool()
        said = run(replies(locked, ["ok|1", "ok|2"]))
        assert said[0].text and isinstance(said[1], UserError) and "wait until that ends" in str(said[1])
        other.execute("ROLLBACK")
        locked.close()
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("DELETE FROM spent")
    cache = ReplyCache(p.path)  # its sums are made anew
    assert cache.spent().requests == spent.requests and cache.spent().tokens == spent.tokens
    assert cache.spent().money == pytest.approx(spent.money)
    with pytest.raises(UserError, match="too large"):
        cache.send("c", None, "a", "worker", 0, None, 2**70, Budget())
    cache._db.execute("PRAGMA query_only=1")  # what a read-only disk says
    with pytest.raises(UserError, match="may not be written"):
        cache.send("c", None, "a", "worker", 0, None, 1, Budget())
    cache.close()
    with pytest.raises(UserError, match="closed"):
        cache.spent()
    (tmp_path / "folder" / "replies.sqlite").mkdir(parents=True)
    with pytest.raises(UserError, match="may not be opened"):
        ReplyCache(tmp_path / "folder" / "replies.sqlite")


def _take(path, out):
    """Send requests until the budget is used up: from two processes at once."""
    cache, taken = ReplyCache(path), 0
    while (request := cache.send("call", None, "a", "worker", 0, 0.5, 10, Budget(calls=300, money=1000.0))) is not None:
        usage = {"prompt_tokens": 1, "completion_tokens": 2}
        cache.came(request, llm_calls.Outcome("answered", "x", usage, 0.25), True)
        taken += 1
    cache.close()
    out.put(taken)


def test_two_processes_share_a_file_and_its_budget(tmp_path):
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    both = [context.Process(target=_take, args=(tmp_path / "r.sqlite", out)) for _ in range(2)]
    for process in both:
        process.start()
    taken = [out.get(timeout=120) for _ in both]
    for process in both:
        process.join()
        assert process.exitcode == 0
    assert sum(taken) == 300
    cache = ReplyCache(tmp_path / "r.sqlite")
    assert cache.spent() == Spent(300 * 0.25, 900, 300)
    cache.close()
