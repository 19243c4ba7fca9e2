"""A GGUF model served over the OpenAI API on loopback, without a key and without network (lesson 11).

The server is xllamacpp's, in a process of its own: it can be killed like a real one, and it ends with its parent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .files import ROOT, UserError

HOST = "127.0.0.1"


@dataclass(frozen=True)
class LocalServer:
    """A running server: api_base such as `http://127.0.0.1:41353/v1`, and its process."""

    api_base: str
    process: subprocess.Popen

    def stop(self) -> None:
        """End the process and wait for it; again and again is as once."""
        self.process.kill()  # it holds nothing that could be lost
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()


def start(
    path: Path, port: int = 0, slots: int = 4, context: int = 2048, threads: int = 1, seconds: float = 60
) -> LocalServer:
    """Start a server and wait until it is healthy.

    port: 0 takes a free one. slots: requests answered at once; more wait. context: tokens a slot, prompt and reply.
    threads: of the processor. seconds: the longest to wait for the model to load.
    Raises: UserError if xllamacpp or the file is missing, the port is taken or the model does not load.
    """
    import importlib.util

    if importlib.util.find_spec("xllamacpp") is None:
        raise UserError("serving a model needs xllamacpp: run `pip install -e .[local]`.")
    if not Path(path).is_file():
        raise UserError(f"{path} is not there: give the path of a GGUF file.")
    with open(path, "rb") as f:
        if f.read(4) != b"GGUF":
            raise UserError(f"{path} is no GGUF file: give one that ends in .gguf.")
    if port:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            raise UserError(f"port {port} is in use: choose another port.") from None
    settings = {"path": str(path), "port": port, "slots": slots, "context": context, "threads": threads}
    command = [sys.executable, "-m", "trinity_mini.local_server", json.dumps(settings)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, encoding="utf-8"
        )
        try:
            base = _first_line(process, seconds)
            if not base.startswith("http"):
                log.seek(0)
                said = log.read().decode(errors="replace").strip().splitlines()
                reason = next((line.strip() for line in reversed(said) if "rror" in line), "it does not say why")
                raise UserError(f"cannot serve {path} ({reason[:200]}): try another port, file or smaller context.")
            _wait_until_healthy(base, process, seconds)
        except BaseException:
            LocalServer("", process).stop()
            raise
        finally:
            if process.stdout:
                process.stdout.close()
    return LocalServer(f"{base}/v1", process)


@contextlib.contextmanager
def serve(
    path: Path, port: int = 0, slots: int = 4, context: int = 2048, threads: int = 1, seconds: float = 60
) -> Iterator[str]:
    """api_base of a server that runs as long as the `with` block; arguments and errors as `start`."""
    server = start(path, port, slots, context, threads, seconds)
    try:
        yield server.api_base
    finally:
        server.stop()


def serve_command(args: argparse.Namespace) -> list[dict]:
    """What `python -m trinity_mini serve` does until Ctrl-C.

    args: path (None: SmolLM2), port, slots, context, threads. The reply cache knows a server by its address, so give
    a fixed port to resume a run.
    """
    from .smollm import gguf_path

    path = args.path or gguf_path()
    server = start(path, args.port, args.slots, args.context, args.threads)
    try:
        print(f"{path.name} answers at {server.api_base} until Ctrl-C. In a pool file:\n")
        print(f'[[agent]]\nname = "local"\nmodel = "openai/{path.stem}"\napi_base = "{server.api_base}"')
        print(f"parameters = {{ max_tokens = {min(256, args.context // 2)} }}\nconcurrency = {args.slots}")
        print("price_in = 0.0\nprice_out = 0.0", flush=True)
        while server.process.poll() is None:
            time.sleep(0.5)
        raise UserError("the server ended by itself: give the same command again.")
    except KeyboardInterrupt:
        return []
    finally:
        server.stop()


def _first_line(process: subprocess.Popen, seconds: float) -> str:
    """What the process prints first; "" if it ends or is silent for too long."""
    found: list[str] = []

    def read() -> None:
        with contextlib.suppress(ValueError, OSError):  # closed under the reader
            found.append(process.stdout.readline().strip())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(seconds)
    if reader.is_alive():
        process.kill()  # so that the reader meets the end
        reader.join()
        return ""
    return found[0] if found else ""


def _wait_until_healthy(base: str, process: subprocess.Popen, seconds: float) -> None:
    import urllib.request

    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), direct.open(f"{base}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise UserError(f"the server did not get ready within {seconds:g} s: stop other programs or wait longer.")


def _run(settings: dict) -> None:
    """The server's process: print the address, then serve until standard input ends, as it does with the parent."""
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = settings["path"]
    p.model_alias = {Path(settings["path"]).stem}
    p.hostnames, p.port = [HOST], settings["port"]
    p.n_parallel, p.n_ctx = settings["slots"], settings["slots"] * settings["context"]
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = settings["threads"]
    p.n_threads_http = settings["slots"] + 2
    p.ui = p.endpoint_slots = p.warmup = False  # nobody can read other people's prompts
    p.cors_origins = ""  # no web page may ask
    p.cache_ram_mib = 0
    server = xllamacpp.Server(p)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)  # requests in flight are the parent's, and it is gone


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))
