"""One agent served by two replicas: the load spreads, and a replica killed in the middle loses nothing."""

import asyncio
import subprocess
import sys
import time

import pytest

from trinity_mini.episode import Transcript, run
from trinity_mini.ledger import ledger
from trinity_mini.llm_agents import Agent, Budget, PoolFile
from trinity_mini.llm_pool import LLMPool
from trinity_mini.roles import Role

# A whole server in a process of its own; each request it answers is a line in its log before the reply goes out.
REPLICA = """
import http.server, json, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        log.write(f"{time.time()}\\n")
        log.flush()
        time.sleep(0.02)
        message = {"role": "assistant", "content": "reply to " + body["messages"][-1]["content"]}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        said = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        said = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass

log = open(sys.argv[1], "a")
http.server.ThreadingHTTPServer.daemon_threads = True
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Replica:
    def __init__(self, log):
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-c", REPLICA, str(log)], stdout=subprocess.PIPE, encoding="utf-8"
        )
        self.base = f"http://127.0.0.1:{int(self.process.stdout.readline())}/v1"

    @property
    def count(self):
        return len(self.log.read_text(encoding="utf-8").splitlines()) if self.log.exists() else 0

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def replicas(tmp_path):
    both = [Replica(tmp_path / f"log{i}") for i in range(2)]
    yield both
    for r in both:
        r.kill()


def agent(replicas, **options):
    return Agent("twin", "openai/m", api_base=tuple(r.base for r in replicas), price_in=1.0, price_out=1.0, **options)


def questions(n, start=0):
    return [Transcript(f"number {i}").messages(Role.WORKER) for i in range(start, start + n)]


async def asked(pool, conversations):
    return await asyncio.gather(*(pool.reply(0, m) for m in conversations))


def texts(conversations):
    return [f"reply to {m[-1]['content']}" for m in conversations]


def test_the_load_spreads_and_a_killed_replica_loses_nothing(replicas, tmp_path):
    first, second = replicas
    before, during = questions(60), questions(120, start=60)
    with LLMPool(PoolFile((agent(replicas, concurrency=8),), Budget(lost_share=0.0)), tmp_path) as pool:
        assert [r.text for r in run(asked(pool, before))] == texts(before)
        assert first.count + second.count == 60
        assert min(first.count, second.count) >= 24  # measured: 30 and 30

        async def with_a_kill():
            work = asyncio.ensure_future(asked(pool, during))
            while second.count < 45:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(second.kill)  # requests of it are out
            return await work

        replies = run(with_a_kill())
    assert [r.text for r in replies] == texts(during)
    assert all(r.cost == pytest.approx(10 / 1e6) for r in replies)
    assert 45 <= second.count < 75  # it would have had 90 of the 180
    assert first.count + second.count >= 180
    row = ledger(tmp_path / "replies.sqlite").iloc[0]
    assert row.calls == 180
    assert row.requests > 180  # what the dead one was asked is counted too


def test_a_replica_that_is_down_from_the_start_is_gone_around(replicas, tmp_path):
    first, second = replicas
    first.kill()
    conversations = questions(8)
    start = time.monotonic()
    with LLMPool(PoolFile((agent(replicas, concurrency=8),), Budget(lost_share=0.0)), tmp_path) as pool:
        assert [r.text for r in run(asked(pool, conversations))] == texts(conversations)
    assert second.count == 8
    assert time.monotonic() - start < 30
