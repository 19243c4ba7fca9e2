"""Fixed chains, against the episode loop and against brute force."""

from itertools import product

import numpy as np
import pytest
from world import LetterPool, random_pool

from trinity_mini.chains import play_chain, search_chain
from trinity_mini.episode import Rules, fixed, play, play_all, run
from trinity_mini.roles import Role
from trinity_mini.tasks import FAMILIES, HARD_FAMILIES, question_set


@pytest.fixture(scope="module")
def asked():
    return question_set("train", 3, 0, FAMILIES + HARD_FAMILIES)


def chains(n_agents, length, many, seed=0):
    rng = np.random.default_rng(seed)
    return [
        tuple((int(rng.integers(n_agents)), Role(int(rng.integers(3)))) for _ in range(length)) for _ in range(many)
    ]


def played(pool, chain, asked):
    """Rewards by the episode loop."""
    rules = Rules(max_turns=len(chain))
    return [e.reward for e in run(play_all([play(q, fixed(chain), pool, rules) for q in asked]))]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7])
def test_a_chain_is_an_episode_that_does_not_listen(tmp_path, asked, length):
    pool, seen = LetterPool(tmp_path), set()
    for chain in chains(3, length, 40, seed=length):
        rewards = play_chain(pool, chain, asked)
        assert rewards.tolist() == played(LetterPool(tmp_path), chain, asked)
        seen |= set(rewards)
    assert seen == {0.0, 1.0}


def test_so_with_real_language_models(tmp_path, asked):
    pool = random_pool(tmp_path)
    for chain in chains(2, 5, 8):
        assert play_chain(pool, chain, asked).tolist() == played(pool, chain, asked)
    assert len(set(pool.memory.values())) > 20


def test_nobody_to_ask_is_nothing_right(tmp_path, asked):
    assert play_chain(LetterPool(tmp_path), (), asked).tolist() == [0.0] * len(asked)
    assert play_chain(LetterPool(tmp_path), ((0, Role.WORKER),), []).shape == (0,)


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_search_finds_what_brute_force_finds(tmp_path, asked, turns, seed):
    """All 3 x 2 choices a turn; the beam is wide enough to keep every state."""
    pool = LetterPool(tmp_path, n_agents=2, seed=seed)
    every = [c for n in range(1, turns + 1) for c in product(product(range(2), Role), repeat=n)]
    accuracies = {c: float(play_chain(pool, c, asked).mean()) for c in every}
    chain, accuracy = search_chain(pool, asked, range(2), max_turns=turns, keep=10**6)
    assert accuracy == max(accuracies.values()) == accuracies[chain] > 0
    assert len(chain) == min(len(c) for c, a in accuracies.items() if a == accuracy)


def test_a_narrow_beam_gives_a_true_chain_of_the_agents_allowed(tmp_path, asked):
    pool = LetterPool(tmp_path)
    for agents in ([1], [0, 2]):
        chain, accuracy = search_chain(pool, asked, agents, max_turns=5, keep=3)
        assert {a for a, _ in chain} <= set(agents) and 1 <= len(chain) <= 5
        assert accuracy == play_chain(pool, chain, asked).mean()
        assert accuracy <= search_chain(pool, asked, range(3), max_turns=5, keep=40)[1]
