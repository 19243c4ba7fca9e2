"""Requests and replies of real LLMs in one sqlite file: nothing that arrived is paid for twice (lesson 11).

A request is written before it is sent, its outcome when it arrives; a statement is a transaction, so a killed process
loses no reply, and two processes may use one file, though one pool only (`FolderLock`). Sums that budgets rest on are
kept by triggers, in the same transaction.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .files import UserError
from .llm_agents import Budget
from .llm_outcomes import Outcome
from .pool import Message, Reply

PATIENCE = 60  # seconds to wait for another process that writes
VERSION = 1

# final: the row whose outcome is the call's. most_*: upper bounds, counted until the true figures are known, and
# for good where they never are (a time-out, a killed process).
_TABLES = """
CREATE TABLE IF NOT EXISTS requests (
    id INTEGER PRIMARY KEY, call TEXT NOT NULL, asked TEXT, agent TEXT NOT NULL, role TEXT NOT NULL,
    attempt INTEGER NOT NULL, sent REAL NOT NULL, most_money REAL, most_tokens INTEGER NOT NULL,
    kind TEXT, final INTEGER NOT NULL DEFAULT 0, text TEXT, prompt_tokens INTEGER, completion_tokens INTEGER,
    cost REAL, finish_reason TEXT, model TEXT, seconds REAL, error TEXT
);
CREATE INDEX IF NOT EXISTS final_calls ON requests (call) WHERE final = 1;
CREATE TABLE IF NOT EXISTS spent (
    one INTEGER PRIMARY KEY CHECK (one = 1), money REAL, tokens INTEGER, requests INTEGER
);
INSERT OR IGNORE INTO spent SELECT 1, coalesce(sum(coalesce(cost, most_money, 0)), 0),
    coalesce(sum(coalesce(prompt_tokens + completion_tokens, most_tokens)), 0), count(*) FROM requests;
CREATE TRIGGER IF NOT EXISTS asked AFTER INSERT ON requests BEGIN
    UPDATE spent SET requests = requests + 1, money = money + coalesce(NEW.most_money, 0),
        tokens = tokens + NEW.most_tokens;
END;
CREATE TRIGGER IF NOT EXISTS came AFTER UPDATE OF kind ON requests WHEN OLD.kind IS NULL AND NEW.kind IS NOT NULL BEGIN
    UPDATE spent SET money = money + coalesce(NEW.cost, NEW.most_money, 0) - coalesce(NEW.most_money, 0),
        tokens = tokens + coalesce(NEW.prompt_tokens + NEW.completion_tokens, NEW.most_tokens) - NEW.most_tokens;
END;
"""


_REMEDIES = {
    "BUSY": "another process holds it: wait until that ends, then start again to resume",
    "READONLY": "it or its folder may not be written: get the right to write there, or choose another folder",
    "CANTOPEN": "it or its folder may not be opened or written: get the right to, or choose another folder",
    "FULL": "the disk is full: free some space, then start again to resume",
    "IOERR": "its disk does not answer: see to the disk and its space, then start again to resume",
    "TOOBIG": "a reply is too large for it: give a smaller max_tokens, then start again to resume",
}
_REMEDIES |= {"LOCKED": _REMEDIES["BUSY"], "PERM": _REMEDIES["READONLY"], "AUTH": _REMEDIES["READONLY"]}


class Locked(UserError):
    """Another process holds the file; the same again may succeed."""


@dataclass(frozen=True)
class Spent:
    """Upper bounds of what a file's requests may have cost, those under way included."""

    money: float
    tokens: int
    requests: int


def question(
    model: str, api_base: Any, messages: Sequence[Message], parameters: Mapping[str, Any], draw: Sequence[Any]
) -> str:
    """All that decides a reply, as JSON: the key of a call."""
    asked = {
        "model": model,
        "api_base": api_base,
        "messages": [[m["role"], m["content"]] for m in messages],
        "parameters": dict(parameters),
        "draw": list(draw),
    }
    return json.dumps(asked, sort_keys=True, separators=(",", ":"))


def digest(asked: str) -> str:
    return hashlib.sha256(asked.encode()).hexdigest()


class ReplyCache:
    """The file; its methods may be called from any thread.

    Raises: UserError if the file is damaged, is of another kind, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(f"cannot make {self.path.parent} ({e.strerror or e}): choose another folder.") from None
        self._db: sqlite3.Connection | None = None
        try:
            self._do(self._open)
        except UserError:
            if self._db is not None:
                self._db.close()
            raise

    def _open(self, _: Any) -> None:
        self._db = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing; a power cut the last moment
        version, names = self._db.execute("PRAGMA user_version").fetchone()[0], _tables(self._db)
        if (version or names) and (version != VERSION or "requests" not in names):
            raise UserError(f"{self.path} is no reply file of this version: choose another folder.")
        whole = {"requests", "spent", "asked", "came"} <= names
        if not whole or self._db.execute("SELECT count(*) FROM spent").fetchone()[0] != 1:
            self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")

    def _do(self, work: Callable[[Any], Any]) -> Any:
        with self._lock:
            if self._db is None and work != self._open:
                raise UserError(f"{self.path} is closed: open it again.")
            try:
                return work(self._db)
            except sqlite3.Error as e:
                raise _error(self.path, e) from None
            except OverflowError:
                raise UserError(f"a number is too large for {self.path}: give smaller limits in the pool.") from None

    def find(self, call: str) -> Reply | None:
        """The reply of a call that has one: the first recorded that can be used, else that it was lost."""
        find = (
            "SELECT text, prompt_tokens, completion_tokens, cost, finish_reason, kind FROM requests "
            "WHERE call = ? AND final = 1 ORDER BY text IS NULL, id LIMIT 1"
        )
        row = self._do(lambda db: db.execute(find, (call,)).fetchone())
        if row is None:
            return None
        text, prompt, completion, cost, reason, kind = row
        usage = {} if prompt is None else {"prompt_tokens": prompt, "completion_tokens": completion}
        return Reply(text, usage, cost, (reason or "stop") if text is not None else kind)

    def send(
        self,
        call: str,
        asked: str | None,
        agent: str,
        role: str,
        attempt: int,
        most_money: float | None,
        most_tokens: int,
        budget: Budget,
    ) -> int | None:
        """Write a request that is about to be sent, if the budget allows it; its id, else None.

        most_*: upper bounds of what it may cost. One statement, so that two processes cannot both take the rest.
        """
        insert = (
            "INSERT INTO requests (call, asked, agent, role, attempt, sent, most_money, most_tokens) "
            "SELECT :call, :asked, :agent, :role, :attempt, :sent, :most_money, :most_tokens FROM spent "
            "WHERE (:money IS NULL OR money + coalesce(:most_money, 0) <= :money) "
            "AND (:tokens IS NULL OR tokens + :most_tokens <= :tokens) AND (:calls IS NULL OR requests + 1 <= :calls)"
        )
        row = {
            "call": call, "asked": asked, "agent": agent, "role": role, "attempt": attempt, "sent": time.time(),
            "most_money": most_money, "most_tokens": most_tokens,
            "money": budget.money, "tokens": budget.tokens, "calls": budget.calls,
        }  # fmt: skip

        def work(db: Any) -> int | None:
            cursor = db.execute(insert, row)
            return cursor.lastrowid if cursor.rowcount == 1 else None

        return self._do(work)

    def came(self, request: int, o: Outcome, final: bool) -> None:
        """Write what became of a request; `final` if its call is not tried again."""
        cost = 0.0 if o.free else o.cost
        prompt, completion = (0, 0) if o.free else (o.usage.get("prompt_tokens"), o.usage.get("completion_tokens"))
        update = (
            "UPDATE requests SET kind = ?, final = ?, text = ?, prompt_tokens = ?, completion_tokens = ?, cost = ?, "
            "finish_reason = ?, model = ?, seconds = ?, error = ? WHERE id = ?"
        )
        row = (o.kind, int(final), o.text, prompt, completion, cost, o.finish_reason, o.model, o.seconds, o.error)
        self._do(lambda db: db.execute(update, (*row, request)))

    def give_up(self, request: int) -> None:
        """The outcome of an earlier request is its call's after all."""
        self._do(lambda db: db.execute("UPDATE requests SET final = 1 WHERE id = ?", (request,)))

    def forget_lost(self, calls: Sequence[str] | None = None) -> int:
        """Forget that calls (all, or these) were lost, so that they are asked again; what they cost stays counted.

        Returns: how many were forgotten.
        """
        forget = "UPDATE requests SET final = 0 WHERE final = 1 AND text IS NULL"
        if calls is None:
            return self._do(lambda db: db.execute(forget).rowcount)
        return sum(self._do(lambda db, c=c: db.execute(forget + " AND call = ?", (c,)).rowcount) for c in calls)

    def answered(self) -> set[str]:
        """The agents that have brought a text."""
        find = "SELECT DISTINCT agent FROM requests WHERE text IS NOT NULL"
        return {name for (name,) in self._do(lambda db: db.execute(find).fetchall())}

    def spent(self) -> Spent:
        row = self._do(lambda db: db.execute("SELECT money, tokens, requests FROM spent").fetchone())
        if row is None or None in row:
            raise UserError(f"{self.path} has lost its sums: start again, they are then made anew.")
        return Spent(*row)

    def exceeded(self, b: Budget, money: float | None, tokens: int) -> str | None:
        """The limit that a request with these bounds would exceed now, None if it would not."""
        spent = self.spent()
        if b.calls is not None and spent.requests + 1 > b.calls:
            return f"budget.calls = {b.calls} (requests sent: {spent.requests})"
        if b.tokens is not None and spent.tokens + tokens > b.tokens:
            return f"budget.tokens = {b.tokens} (used: at most {spent.tokens})"
        if b.money is not None and spent.money + (money or 0) > b.money:
            return f"budget.money = {b.money:g} (spent: at most {spent.money:.4f})"
        return None

    def close(self) -> None:
        if self._db is not None:
            self._do(lambda db: db.close())
            self._db = None


def read_requests(path: Path) -> list[dict[str, Any]]:
    """All requests of a file, with whether they brought a text (`usable`) in place of it, also while others write.

    Raises: UserError if there is no such file, or it is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} does not exist: give the file replies.sqlite of a run that used real LLMs.")
    columns = (
        "call, agent, role, attempt, sent, most_money, most_tokens, kind, final, usable, prompt_tokens, "
        "completion_tokens, cost, finish_reason, model, seconds, error"
    )
    select = columns.replace("usable", "text IS NOT NULL")
    try:
        with closing(sqlite3.connect(path, timeout=PATIENCE)) as db:
            if db.execute("PRAGMA user_version").fetchone()[0] != VERSION or "requests" not in _tables(db):
                raise UserError(f"{path} is no reply file of this version: give a replies.sqlite.")
            return [
                dict(zip(columns.split(", "), row, strict=True))
                for row in db.execute(f"SELECT {select} FROM requests ORDER BY id")
            ]
    except sqlite3.Error as e:
        raise _error(path, e) from None


class FolderLock:
    """An exclusive claim on a file of replies, until `release` or until the process ends, however it ends.

    It is sqlite's lock of an empty file beside it, which every operating system gives back with the process.
    Raises: UserError if another pool, of this process or another, has it.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UserError(f"cannot make {path.parent} ({e.strerror or e}): choose another folder.") from None
        lock = path.with_name(path.name + "-lock")
        db = None
        try:
            db = sqlite3.connect(lock, timeout=0, isolation_level=None, check_same_thread=False)
            db.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as e:
            if db is not None:
                db.close()
            if _name(e) in ("BUSY", "LOCKED"):
                raise UserError(
                    f"another process uses these replies in {path.parent}: wait for it, or choose another --out."
                ) from None
            raise _error(lock, e) from None
        self._db = db

    def release(self) -> None:
        self._db.close()


def _name(e: sqlite3.Error) -> str:
    """sqlite's name of an error without what is particular about it, e.g. BUSY of SQLITE_BUSY_SNAPSHOT."""
    return (getattr(e, "sqlite_errorname", None) or "").removeprefix("SQLITE_").split("_")[0]


def _error(path: Path, e: sqlite3.Error) -> UserError:
    """The sentence for an error of sqlite: each has a remedy of its own."""
    name = _name(e)
    if name in ("BUSY", "LOCKED"):
        return Locked(f"cannot use {path} ({e}): {_REMEDIES[name]}.")
    if name in _REMEDIES:
        return UserError(f"cannot use {path} ({e}): {_REMEDIES[name]}.")
    return UserError(f"{path} is damaged ({e}): move it away or choose another folder; its replies are asked again.")


def _tables(db: sqlite3.Connection) -> set[str]:
    """Names of tables and triggers."""
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'trigger')")}
