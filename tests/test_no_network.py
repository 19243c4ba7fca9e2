"""Import, --help and everything that `make test` runs need no network: tested with sockets blocked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GUARD = ROOT / "tests" / "no_network"
NO_SOCKETS = """
import socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("a socket was asked for")
socket.socket.__init__ = refuse
socket.getaddrinfo = socket.create_connection = refuse
"""
NO_CONNECTIONS = NO_SOCKETS.replace("socket.socket.__init__", "socket.socket.connect")  # an event loop has sockets


def python(code, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", timeout=180, cwd=ROOT,
        env={k: v for k, v in environment.items() if v is not None},
    )  # fmt: skip


def modules():
    return sorted(p.stem for p in (ROOT / "trinity_mini").glob("*.py") if p.stem != "__main__")


@pytest.mark.parametrize(
    ("blocked", "code"),
    [
        (NO_SOCKETS, "; ".join(f"import trinity_mini.{m}" for m in modules())),
        (NO_SOCKETS, "from trinity_mini.__main__ import main; main(['--help'])"),
        (NO_SOCKETS, "from trinity_mini.llm_calls import load; load()"),
        (NO_CONNECTIONS, "from trinity_mini.__main__ import main; raise SystemExit(main(['ask', 'capital peru']))"),
    ],
    ids=["every module", "--help", "litellm", "ask"],
)
def test_without_sockets(blocked, code):
    done = python(f"{blocked}\n{code}", HF_HUB_OFFLINE=None, LITELLM_LOCAL_MODEL_COST_MAP=None)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.create_connection(('192.0.2.1', 443), timeout=5)",
        "socket.create_connection(('example.org', 443), timeout=5)",
        "import urllib.request; urllib.request.urlopen('http://192.0.2.1/', timeout=5)",
        "import asyncio; asyncio.run(asyncio.open_connection('192.0.2.1', 443))",
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('192.0.2.1', 53))",
    ],
)
def test_the_guard_of_make_test_blocks(attempt):
    done = python(f"import socket; {attempt}", PYTHONPATH=str(GUARD), http_proxy=None, https_proxy=None)
    assert done.returncode == 1 and "the network is blocked in tests" in done.stderr


def test_the_guard_lets_this_machine_through():
    code = (
        "import socket; server = socket.create_server(('127.0.0.1', 0)); "
        "socket.create_connection(('localhost', server.getsockname()[1]), timeout=5)"
    )
    assert python(code, PYTHONPATH=str(GUARD)).returncode == 0


def test_make_test_puts_the_guard_on_everything():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert 'OFFLINE := PYTHONPATH="$(CURDIR)/tests/no_network"\n' in makefile
    runs = [line for line in makefile.splitlines() if "-m pytest" in line]
    assert len(runs) == 2 and all(line.startswith("\t$(OFFLINE) $(PY)") for line in runs)
