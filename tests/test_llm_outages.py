"""What long paid runs meet: outages early and late, servers that restart, other pools, proxies, a scheduler's end."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from llm_server import Server
from test_llm_pool import replies

from trinity_mini import llm_calls, llm_pool, llm_troubles
from trinity_mini.episode import run
from trinity_mini.files import UserError
from trinity_mini.ledger import ledger
from trinity_mini.llm_agents import Agent, Budget, PoolFile
from trinity_mini.llm_cache import read_requests
from trinity_mini.llm_pool import LLMPool, PoolStopped
from trinity_mini.worlds import world

DEAD = "http://127.0.0.1:9/v1"  # nobody listens there


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    llm_calls.load()
    monkeypatch.setattr(llm_pool, "FIRST_PAUSE", 0.05)


def agent(base, **settings):
    settings = {"price_in": 100.0, "price_out": 400.0, "parameters": {"max_tokens": 50}, "deadline": 8.0} | settings
    return Agent("a", "openai/m", base, **settings)


def opened(folder, *agents, **limits):
    return LLMPool(PoolFile(agents, Budget(**({"lost_share": 1} | limits))), folder)


def test_an_outage_late_in_a_run_stops_it_and_the_same_command_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(llm_troubles, "RECENT", 60)
    with Server(lambda body, n: "ok") as server, opened(tmp_path, agent(server.base), lost_share=0.1) as pool:
        assert all(r.text for r in run(replies(pool, [f"ok|{i}" for i in range(400)])))
        server.behave = lambda body, n: "400"
        said = run(replies(pool, [f"late {i}" for i in range(40)]))
        assert isinstance(said[-1], PoolStopped) and "of the last 60 calls were lost" in str(said[-1])
        server.behave = lambda body, n: "ok"
        pool.close()
        with opened(tmp_path, agent(server.base), lost_share=0.1) as again:
            assert all(r.text for r in run(replies(again, [f"late {i}" for i in range(40)])))


def test_a_generation_that_was_lost_is_asked_again(tmp_path):
    """Where no share of lost calls stops the run, training itself stops: and nothing may be lost for good."""
    from trinity_mini.training import TrainingRun

    pool_file = tmp_path / "pool.toml"
    entry = '[[agent]]\nname = "{i}"\nmodel = "openai/m{i}"\napi_base = "{base}"\nprice_in = 0.0\nprice_out = 0.0\n'
    with Server(lambda body, n: "ok") as server:
        agents = "".join(entry.format(i=i, base=server.base) for i in range(2))
        pool_file.write_text(f"[budget]\nlost_share = 1.0\n{agents}", encoding="utf-8")
        with world("quick", tmp_path / "run", pool_file) as w:
            trained = TrainingRun(tmp_path / "run", w.coordinator, w.pool, w.preset, 1, w.tasks)
            server.behave = lambda body, n: "400"
            with pytest.raises(UserError, match="resume"):
                trained.evaluate(np.zeros((34, w.coordinator.n)), 1)
            server.behave = lambda body, n: "ok"
            scores, _ = trained.evaluate(np.zeros((34, w.coordinator.n)), 1)
            assert np.isfinite(scores).all()


def test_a_server_that_restarts_loses_nothing(tmp_path):
    with Server() as server:
        port = int(server.base.split(":")[2].split("/")[0])
        pool = opened(tmp_path, agent(server.base, concurrency=4))
        assert run(replies(pool, ["ok"]))[0].text
    back = []

    def later():
        time.sleep(1.5)
        back.append(Server(port=port))

    thread = threading.Thread(target=later)
    thread.start()
    said = run(replies(pool, [f"after {i}" for i in range(8)]))
    thread.join()
    with closing(pool), closing(back[0]):
        assert all(r.text for r in said)
        rows = [r for r in read_requests(pool.path) if r["kind"] == "failed"]
        assert rows and all(r["cost"] == 0 for r in rows)  # nothing was sent, nothing is booked


@pytest.mark.parametrize("base", [DEAD, "http://no-such-host.invalid/v1"])
def test_an_agent_that_never_answered_stops_the_run_soon_and_costs_nothing(tmp_path, base):
    start = time.monotonic()
    with opened(tmp_path, agent(base, deadline=300.0), money=50.0) as pool:
        said = run(replies(pool, [f"q {i}" for i in range(100)]))
        assert time.monotonic() - start < 20
        assert all(isinstance(r, PoolStopped) and "start its server" in str(r) for r in said)
        assert pool.cache.spent().money == pytest.approx(0, abs=1e-9)


def test_a_limit_of_requests_a_minute_is_waited_for(tmp_path):
    times = []

    def ten_a_second(body, n):
        now = time.monotonic()
        times[:] = [t for t in times if now - t < 1]
        if len(times) >= 10:
            return "429"
        times.append(now)
        return "ok"

    with Server(ten_a_second) as server, opened(tmp_path, agent(server.base, concurrency=16, attempts=2)) as pool:
        assert all(r.text for r in run(replies(pool, [f"q {i}" for i in range(40)])))


def test_a_single_attempt_is_a_single_request(tmp_path):
    with Server(lambda body, n: "500") as server, opened(tmp_path, agent(server.base, attempts=1)) as pool:
        assert run(replies(pool, ["q"]))[0].lost and server.count == 1


def test_closing_a_pool_leaves_the_others_alone(tmp_path):
    with Server(lambda body, n: "wait 0.5") as server:
        first, second = (opened(tmp_path / str(i), agent(server.base)) for i in range(2))
        run(replies(first, ["ok"]))
        said = []
        thread = threading.Thread(target=lambda: said.extend(run(replies(second, [f"q {i}" for i in range(8)]))))
        thread.start()
        time.sleep(0.25)
        first.close()
        thread.join()
        with closing(second):
            assert all(r.text for r in said) and server.count == 1 + 8
            assert run(replies(second, ["more"]))[0].text
        assert server.count == 10


def test_one_question_that_is_refused_is_lost_and_many_stop_the_run(tmp_path):
    def behave(body, n):
        return "403" if "bad" in body["messages"][-1]["content"] else "ok"

    with Server(behave) as server, opened(tmp_path, agent(server.base, concurrency=1)) as pool:
        said = run(replies(pool, ["good", "bad 1", "good 2", "bad 2", "good 3"]))
        assert [r.lost for r in said] == [False, True, False, True, False]
        said = run(replies(pool, [f"bad {i}" for i in range(3, 20)]))
        assert isinstance(said[-1], PoolStopped) and "check its key" in str(said[-1])
        assert server.count == 5 + llm_troubles.IN_A_ROW


def test_check_asks_each_server(tmp_path):
    with Server() as server, opened(tmp_path, agent((server.base, DEAD))) as pool:
        rows = run(pool.check())
        assert [(r["agent"], r["outcome"]) for r in rows] == [
            (f"a at {server.base}", "answered"), (f"a at {DEAD}", "failed"),
        ]  # fmt: skip


def test_no_proxy_sees_what_goes_to_this_machine(tmp_path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from llm_server import Server\nfrom test_llm_outages import agent, opened, replies, run\n"
        "with Server() as proxy, Server() as server, opened(sys.argv[2], agent(server.base)) as pool:\n"
        "    import os; os.environ['HTTP_PROXY'] = os.environ['http_proxy'] = proxy.base.removesuffix('/v1')\n"
        "    print(run(replies(pool, ['ok']))[0].text, proxy.count, server.count)\n"
    )
    env = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"}
    command = [sys.executable, "-c", program, os.path.dirname(__file__), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout.split()[-2:] == ["0", "1"], done.stderr[-2000:]


def test_an_address_in_the_environment_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", DEAD)
    for model in ("gpt-5", "openai/gpt-5"):
        with pytest.raises(UserError, match="unset OPENAI_BASE_URL"):
            opened(tmp_path, Agent("a", model))


def test_a_file_that_is_locked_for_long_sends_nothing_late(tmp_path, monkeypatch):
    with Server() as server, opened(tmp_path, agent(server.base, deadline=1.0, attempts=1)) as pool:
        run(replies(pool, ["ok"]))
        send = pool.cache.send

        def slow(*row):
            time.sleep(0.95)
            return send(*row)

        monkeypatch.setattr(pool.cache, "send", slow)
        assert run(replies(pool, ["q"]))[0].lost and server.count == 1
        assert ledger(pool.path).iloc[-1]["at_most"] == pytest.approx(ledger(pool.path).iloc[-1]["cost"])


@pytest.mark.skipif(os.name == "nt", reason="Windows ends a process at once")
def test_a_schedulers_end_waits_for_what_is_paid(tmp_path):
    entry = '[[agent]]\nname = "{i}"\nmodel = "openai/m{i}"\napi_base = "{base}"\nprice_in = 0.0\nprice_out = 0.0\n'
    with Server(lambda body, n: "wait 2") as server:
        pool = tmp_path / "pool.toml"
        pool.write_text("".join(entry.format(i=i, base=server.base) for i in range(2)), encoding="utf-8")
        command = ["train", "--preset", "quick", "--pool", str(pool), "--out", str(tmp_path / "run"), "--no-evaluate"]
        child = subprocess.Popen([sys.executable, "-m", "trinity_mini", *command], stderr=subprocess.PIPE, text=True)
        timer = threading.Timer(150, child.kill)
        timer.daemon = True
        timer.start()
        while server.out < 10 and child.poll() is None:
            time.sleep(0.01)
        time.sleep(0.2)
        child.send_signal(signal.SIGTERM)
        said = child.communicate()[1]
        assert child.returncode == 128 + signal.SIGTERM and "waiting for" in said
        assert {r["kind"] for r in read_requests(tmp_path / "run" / "replies.sqlite")} == {"answered"}
