"""The cost estimate: exact where it must be, calibrated on heavy tails, and honest about what it cannot know."""

import numpy as np
import pytest

from trinity_mini.episode import Episode, Turn
from trinity_mini.files import UserError
from trinity_mini.llm_estimate import as_text, estimate
from trinity_mini.pool import Reply
from trinity_mini.roles import Role

AGENTS = ("cheap", "dear")


def turn(agent, cost, prompt=10, completion=5, text="x"):
    usage = {} if prompt is None else {"prompt_tokens": prompt, "completion_tokens": completion}
    return Turn(agent, Role.WORKER, Reply(text, usage, cost))


def episode(*turns):
    return Episode(None, tuple(turns), None, False, 0.0)


def row(table, name):
    return table.set_index("agent").loc[name]


def test_means_are_scaled_to_the_run():
    pilot = [episode(turn(0, 0.01), turn(1, 0.5, 100, 40)), episode(turn(0, 0.03, 30, 7))] * 4
    table = estimate(pilot, 1000, AGENTS, max_turns=4)
    cheap, dear, total = (row(table, n) for n in (*AGENTS, "all"))
    assert (cheap.calls, dear.calls, total.calls) == (1000, 500, 1500)
    assert (cheap.prompt_tokens, dear.prompt_tokens, total.prompt_tokens) == (20_000, 50_000, 70_000)
    assert (cheap.completion_tokens, dear.completion_tokens) == (6_000, 20_000)
    assert [cheap.cost, dear.cost, total.cost] == pytest.approx([20, 250, 270])
    assert [cheap.worst, dear.worst, total.worst] == pytest.approx([120, 2000, 2000])
    for r in (cheap, dear, total):
        assert r.low < r.cost < r.high
        assert r.tokens_low < r.prompt_tokens + r.completion_tokens < r.tokens_high


def test_equal_episodes_leave_no_doubt():
    table = estimate([episode(turn(0, 0.02))] * 6, 50, AGENTS[:1])
    assert [row(table, "all")[c] for c in ("low", "cost", "high")] == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.parametrize("n, sigma, planned", [(8, 0.8, 500), (8, 1.2, 500), (12, 0.8, 32_640), (30, 0.8, 500)])
def test_the_interval_covers_the_cost_of_runs_with_heavy_tails(n, sigma, planned):
    rng = np.random.default_rng([4, n, planned])
    covered = 0
    for _ in range(100):
        costs = rng.lognormal(0, sigma, n)
        low, high = row(estimate([episode(turn(0, c)) for c in costs], planned, AGENTS[:1]), "all")[["low", "high"]]
        covered += low <= rng.lognormal(0, sigma, planned).sum() <= high
    assert covered >= 85


def test_the_interval_covers_runs_of_many_turns_and_two_prices():
    """No lognormal: 1 to 5 turns, a third of them twenty times as dear."""

    def played(rng, n):
        for turns in rng.integers(1, 6, n):
            agents = (rng.random(turns) < 0.3).astype(int)
            yield [(int(a), float(c)) for a, c in zip(agents, 20.0**agents * rng.lognormal(0, 0.6, turns), strict=True)]

    rng, covered, dear_covered = np.random.default_rng(5), 0, 0
    for _ in range(100):
        table = estimate([episode(*(turn(a, c) for a, c in e)) for e in played(rng, 10)], 300, AGENTS)
        run = list(played(rng, 300))
        total, dear = row(table, "all"), row(table, "dear")
        covered += total.low <= sum(c for e in run for _, c in e) <= total.high
        dear_covered += dear.low <= sum(c for e in run for a, c in e if a == 1) <= (dear.high or np.inf)
    assert covered >= 85
    assert dear_covered >= 85


def test_more_pilot_episodes_narrow_the_interval():
    costs = np.random.default_rng(6).lognormal(0, 0.8, 64)
    few, many = (row(estimate([episode(turn(0, c)) for c in costs[:n]], 300, AGENTS[:1]), "all") for n in (8, 64))
    assert many.high / many.low < few.high / few.low / 1.5


def test_unknown_prices_stay_unknown():
    pilot = [episode(turn(0, 0.01), turn(1, None))] * 8
    table = estimate(pilot, 100, AGENTS)
    assert row(table, "cheap").cost == pytest.approx(1.0)
    for name in ("dear", "all"):
        assert [row(table, name)[c] for c in ("cost", "low", "high", "worst")] == [None] * 4
        assert row(table, name).tokens_high >= 1500
    assert "unknown" in as_text(table)


def test_missing_usage_is_not_zero_tokens():
    table = estimate([episode(turn(0, 0.01), turn(1, 0.1, None))] * 8, 100, AGENTS)
    assert row(table, "dear").prompt_tokens is None and row(table, "all").tokens_high is None
    assert row(table, "cheap").prompt_tokens == 1000 and row(table, "all").cost == pytest.approx(11)


def test_an_agent_that_the_pilot_never_met_has_no_upper_end():
    table = estimate([episode(turn(0, 0.01))] * 8, 100, AGENTS)
    dear = row(table, "dear")
    assert (dear.calls, dear.cost, dear.low, dear.high, dear.worst) == (0, 0, 0, None, None)
    assert row(table, "all").high == pytest.approx(1.0)


def test_a_free_pool_costs_nothing():
    table = estimate([episode(turn(0, 0.0), turn(1, 0.0))] * 8, 100, AGENTS)
    assert list(row(table, "all")[["cost", "low", "high", "worst"]]) == [0, 0, 0, 0]


def test_lost_episodes_are_left_out_and_said():
    pilot = [episode(turn(0, 0.01))] * 8 + [episode(turn(0, 5.0), turn(1, None, text=None))]
    table = estimate(pilot, 100, AGENTS)
    assert row(table, "all").cost == pytest.approx(1.0)
    assert "Left out: 1 pilot" in as_text(table)
    with pytest.raises(UserError, match="at least 5"):
        estimate(pilot[:4] + pilot[8:], 100, AGENTS)


@pytest.mark.parametrize("change", [{"episodes": 0}, {"level": 1.0}, {"max_turns": 0}])
def test_numbers_that_make_no_sense(change):
    with pytest.raises(UserError, match="at least 1"):
        estimate(**{"pilot": [episode(turn(0, 0.01))] * 8, "episodes": 10, "agents": AGENTS, **change})


def test_the_text_says_what_the_interval_holds_for():
    pilot = [episode(turn(0, 0.01 * (1 + i)), turn(1, 0.1)) for i in range(8)]
    text = as_text(estimate(pilot, 32_640, AGENTS))
    assert "32640 episodes, estimated from 8 pilot episodes; 90% intervals" in text
    assert "training changes" in text and "worst" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["cheap", "dear", "all"]


def test_the_global_streams_are_untouched(global_streams_untouched):
    estimate([episode(turn(0, 0.01 * (1 + i))) for i in range(8)], 10, AGENTS[:1])
