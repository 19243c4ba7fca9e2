"""Replies on disk: the same as decoded ones, shared by two processes."""

import multiprocessing

import pytest
from world import random_pool

from trinity_mini.files import UserError
from trinity_mini.reply_cache import CachedPool

REQUESTS = [(a, f"({i}*3-1)%7T") for i in range(2, 9) for a in range(2)]


def ask(folder, path, out):
    pool = CachedPool(folder, path)
    out.put(pool.speak(REQUESTS))


def test_replies_are_decoded_once_for_all(tmp_path):
    plain = random_pool(tmp_path / "pool")
    wanted = plain.speak(REQUESTS)
    first = CachedPool(tmp_path / "pool", tmp_path / "replies.sqlite")
    assert first.speak(REQUESTS[:6] + REQUESTS[:2]) == wanted[:6] + wanted[:2]
    assert (first.asked, first.decoded) == (8, 6)
    second = CachedPool(tmp_path / "pool", tmp_path / "replies.sqlite")
    assert second.speak(REQUESTS) == wanted
    assert (second.asked, second.decoded) == (len(REQUESTS), len(REQUESTS) - 6)
    assert second.speak(REQUESTS) == wanted and second.decoded == len(REQUESTS) - 6


def test_another_pool_has_other_replies(tmp_path):
    random_pool(tmp_path / "a")
    other = random_pool(tmp_path / "b", seed=7)
    CachedPool(tmp_path / "a", tmp_path / "r").speak(REQUESTS)
    assert CachedPool(tmp_path / "b", tmp_path / "r").speak(REQUESTS) == other.speak(REQUESTS)


def test_two_processes_share_a_file(tmp_path):
    wanted = random_pool(tmp_path / "pool").speak(REQUESTS)
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    both = [context.Process(target=ask, args=(tmp_path / "pool", tmp_path / "r", out)) for _ in range(2)]
    for p in both:
        p.start()
    assert [out.get(timeout=120) for _ in both] == [wanted, wanted]
    for p in both:
        p.join()
        assert p.exitcode == 0


def test_a_damaged_file_is_named(tmp_path):
    random_pool(tmp_path / "pool")
    (tmp_path / "r").write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match="delete it"):
        CachedPool(tmp_path / "pool", tmp_path / "r")
