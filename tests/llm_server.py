"""A real and hostile server of /v1/chat/completions on loopback, which counts exactly what it is asked.

What it does is a function `behave(body, n) -> kind` (body: the request; n: how often this very body came before).
The text of an answer depends on the body only, so two runs that ask the same get the same.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import json
import multiprocessing
import random
import threading


def digest(body):
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def text_of(body):
    """A tiny reply that fits the role asked for and depends on the conversation."""
    n = int(digest(body["messages"])[:4], 16)
    system = body["messages"][0]["content"]
    if "ACCEPT" in system:
        return "ACCEPT" if n % 2 else "REVISE it"
    return f"<answer>{n % 7}</answer>" if "<answer>" in system else f"plan {n}"


def fine(body, n):
    return "ok"


def nasty(body, n):
    """Most of all bodies are answered; some only after failures, some never, each way of failing among them."""
    random_number = int(digest(body)[:8], 16) % 1000
    kinds = [
        "429", "500", "reset", "invalid_json", "no_choices", "none", "hang_once", "drip_once",
        "length", "no_usage", "wrong_usage", "other_model", "huge", "503", "slow", "text_usage",
    ]  # fmt: skip
    if random_number < 300:
        kind = kinds[random_number % len(kinds)]
        lasting = {"length", "no_usage", "wrong_usage", "other_model", "huge", "slow"}
        if kind in lasting:
            return kind
        return kind.removesuffix("_once") if n == 0 else "ok"
    if random_number < 320:
        return ["hang", "filter", "500", "400"][random_number % 4]  # never answered
    return "ok"


def heavy(body, n):
    """Every reply after a lognormal time, median 300 ms, sigma .8."""
    return f"wait {0.3 * random.Random(digest(body)).lognormvariate(0, 0.8):.4f}"


def heavy_and_short(body, n):
    """The same, median 60 ms."""
    return f"wait {0.06 * random.Random(digest(body)).lognormvariate(0, 0.8):.4f}"


class Server:
    """Serves until closed, in a thread. `count`: requests whose body arrived; `kinds`: what was done with them."""

    def __init__(self, behave=fine, text=text_of, port=0):
        self.behave, self.text = behave, text
        self.count, self.kinds, self.seen = 0, collections.Counter(), collections.Counter()
        self.bodies, self.headers = [], []
        self.answered = []  # digests of bodies whose whole reply was handed to the network
        self.out = self.most_out = self.gone = 0  # requests out now, at most, and left by the client
        self.connections = 0
        started = threading.Event()
        self.loop = asyncio.new_event_loop()

        async def main():
            self.server = await asyncio.start_server(self.connection, "127.0.0.1", port, limit=2**24)
            self.base = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"
            self.ended = asyncio.Event()
            started.set()
            await self.ended.wait()
            self.server.close()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            await asyncio.sleep(0.02)  # the sockets are closed in the next turns of the loop

        def serve():
            self.loop.run_until_complete(main())
            self.loop.close()

        self.thread = threading.Thread(target=serve, daemon=True)
        self.thread.start()
        assert started.wait(10)

    def close(self):
        self.loop.call_soon_threadsafe(self.ended.set)
        self.thread.join(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    async def connection(self, reader, writer):
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
                if head.startswith("GET"):
                    self.send(writer, 200, {"count": self.count, "kinds": self.kinds, "most_out": self.most_out})
                    continue
                n = self.seen[key := digest(body)]
                self.seen[key] += 1
                self.count += 1
                self.bodies.append(body)
                self.headers.append(headers)
                kind = self.behave(body, n)
                self.kinds[kind.split()[0]] += 1
                self.out += 1
                self.most_out = max(self.most_out, self.out)
                try:
                    if not await self.answer(kind, body, reader, writer):
                        return
                    await writer.drain()
                    self.answered.append(key)
                finally:
                    self.out -= 1
        writer.close()

    def send(self, writer, status, content, headers=""):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        fixed = f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
        writer.write(f"HTTP/1.1 {status} X\r\n{fixed}{headers}\r\n".encode() + content)

    async def answer(self, kind, body, reader, writer):
        """Do what kind says; whether the connection lives on."""
        kind, *rest = kind.split()
        message = {"role": "assistant", "content": self.text(body)}
        said = {
            "id": "x", "object": "chat.completion", "created": 1, "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
        }  # fmt: skip
        if kind in ("hang", "drip"):
            if kind == "drip":
                writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{")
            gone = asyncio.ensure_future(reader.read(1))
            while not gone.done():
                await asyncio.wait([gone], timeout=0.02)
                if kind == "drip":
                    writer.write(b" ")
            self.gone += 1
            with contextlib.suppress(OSError):
                await gone
            return False
        if kind == "reset":
            writer.transport.abort()
            return False
        if kind in ("wait", "slow"):
            await asyncio.sleep(float(rest[0]) if rest else 0.3)
        status, headers = 200, ""
        if kind.isdigit():
            status = int(kind)
            said = {"error": {"message": f"no: {self.headers[-1].get('authorization', '')}", "code": status}}
            headers = f"retry-after: {rest[0] if rest else 0}\r\n" if status == 429 else ""
        elif kind == "quota":
            status, said = 429, {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
        elif kind == "minute":  # as Gemini says it
            text = "You exceeded your current quota, please check your plan and billing details. Please retry in 0.4s."
            status, said = 429, {"error": {"code": 429, "message": text, "status": "RESOURCE_EXHAUSTED"}}
        elif kind == "credit":
            status, said = 400, {"error": {"message": "Your credit balance is too low to access the API."}}
        elif kind == "flagged":
            status, said = 403, {"error": {"message": "requires moderation. Your input was flagged", "code": 403}}
        elif kind == "thoughts":
            said["usage"] = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 4025}
        elif kind == "no_choices":
            said["choices"] = []
        elif kind == "none":
            message["content"] = None
        elif kind == "filter":
            message["content"] = None
            said["choices"][0]["finish_reason"] = "content_filter"
        elif kind in ("length", "length_empty"):
            said["choices"][0]["finish_reason"] = "length"
            message["content"] = "a part" if kind == "length" else ""
        elif kind == "no_usage":
            del said["usage"]
        elif kind == "wrong_usage":
            said["usage"] = {"prompt_tokens": -3, "completion_tokens": 5, "total_tokens": 2}
        elif kind == "text_usage":
            said["usage"] = {"prompt_tokens": "many", "completion_tokens": [], "total_tokens": {}}
        elif kind == "big_usage":
            said["usage"] = {"prompt_tokens": 2**70, "completion_tokens": 5, "total_tokens": 2**70 + 5}
        elif kind == "escapes":
            said["model"] = "m\x1b[31m\n\x00"
        elif kind == "other_model":
            said["model"] = "a-cheaper-model"
        elif kind == "huge":
            message["content"] = "x" * 1_000_000
        elif kind == "surrogate":
            message["content"] = "half \ud83d a pair"
        elif kind == "odd_content":
            message["content"] = [{"type": "text", "text": "in parts"}]
        elif kind == "invalid_json":
            said = b'{"choices": [{"message": {"content": "cut'
        elif kind == "html":
            said = b"<html>busy</html>"
        self.send(writer, status, said, headers)
        return True


def _process(pipe, behave):
    with Server(globals()[behave]) as server:
        pipe.send(server.base)
        while pipe.recv() != "close":
            pipe.send({"count": server.count, "kinds": server.kinds, "most_out": server.most_out, "gone": server.gone})


class ServerProcess:
    """The same in a process of its own; behave is a function's name in this module."""

    def __init__(self, behave):
        context = multiprocessing.get_context("spawn")
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=_process, args=(child, behave), daemon=True)
        self.process.start()
        self.base = self.pipe.recv()

    def state(self):
        self.pipe.send("state")
        return self.pipe.recv()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pipe.send("close")
        self.process.join(10)
