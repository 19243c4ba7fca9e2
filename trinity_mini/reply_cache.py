"""Replies of the embedded agents, remembered on disk: the agents are deterministic, so nothing is decoded twice.

One file serves all processes of all studies (sqlite in WAL mode: readers never wait, writers take turns).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from .files import DATA, ROOT, UserError
from .pool import EmbeddedPool

REPLIES = ROOT / "runs" / "replies.sqlite"
PATIENCE = 60  # seconds to wait for another process that writes


class CachedPool(EmbeddedPool):
    """The embedded pool, with its replies in a file. `decoded` counts those that nobody had asked for before.

    Raises: UserError if the file cannot be opened or is damaged.
    """

    def __init__(self, folder: Path = DATA / "tiny_pool", path: Path = REPLIES) -> None:
        super().__init__(folder)
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._open()) as db:
                db.execute("PRAGMA journal_mode=WAL")
                db.execute(
                    "CREATE TABLE IF NOT EXISTS replies (pool TEXT, agent INTEGER, prompt TEXT, text TEXT, "
                    "PRIMARY KEY (pool, agent, prompt)) WITHOUT ROWID"
                )
        except (OSError, sqlite3.Error) as e:
            raise UserError(f"{self.path} cannot be used ({e}): delete it, it is then made again.") from None

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)  # a statement is a transaction

    def _run(self, requests: Sequence[tuple[int, str]]) -> list[str]:
        new = [r for r in dict.fromkeys(requests) if r not in self.memory]
        if new:
            with closing(self._open()) as db:
                find = "SELECT text FROM replies WHERE pool = ? AND agent = ? AND prompt = ?"
                for r in new:
                    if found := db.execute(find, (self.identity, *r)).fetchone():
                        self.memory[r] = found[0]
                new = [r for r in new if r not in self.memory]
                if new:
                    super()._run(new)
                    self.asked -= len(new)
                    rows = [(self.identity, *r, self.memory[r]) for r in new]
                    db.execute("BEGIN IMMEDIATE")
                    db.executemany("INSERT OR IGNORE INTO replies VALUES (?, ?, ?, ?)", rows)
                    db.execute("COMMIT")
        self.asked += len(requests)
        return [self.memory[r] for r in requests]
