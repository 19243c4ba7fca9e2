"""Figures and tables of lesson 09: each is drawn from the recorded files, uncut; the tables by other oracles."""

import io
import itertools

import numpy as np
import PIL.Image
import pytest
from matplotlib.figure import Figure
from scipy.stats import ttest_rel

from trinity_mini import baseline_tables as tables
from trinity_mini import figures_baselines as draw
from trinity_mini.study import frame
from trinity_mini.widgets import png


@pytest.fixture(scope="module")
def methods():
    return frame("methods")


@pytest.fixture(scope="module")
def sweep():
    return frame("reinforce_sweep")


@pytest.fixture(scope="module")
def record():
    return frame("winner_map")


def is_cut(figure):
    grey = np.asarray(PIL.Image.open(io.BytesIO(png(figure, 80))).convert("L"))
    return min(edge.min() for edge in (grey[0], grey[-1], grey[:, 0], grey[:, -1])) < 200


@pytest.mark.parametrize("name", draw.FIGURES)
def test_every_figure_is_drawn_from_the_recorded_files(name):
    figure = draw.FIGURES[name]()
    assert isinstance(figure, Figure) and name.startswith("baselines_")
    assert figure.get_figwidth() <= 9.6 and not is_cut(figure)
    drawn = [ax for ax in figure.axes if ax.has_data() or ax.texts]
    assert drawn and all(ax.get_xlabel() or not ax.get_subplotspec().is_last_row() for ax in drawn)


def test_every_budget_and_pair_can_be_drawn(methods):
    for budget in tables.scores(methods).budget.unique():
        assert isinstance(draw.seeds(methods, int(budget)), Figure)
    assert isinstance(draw.contests(methods, [("SFT, ordered search", "random search, paper")]), Figure)
    for x in draw.UNITS:
        assert draw.curves(methods, draw.SHOWN, x).axes[0].get_xlabel() == draw.UNITS[x]
    assert {*draw.MAIN, *itertools.chain(*draw.CONTESTS)} <= {*draw.LOOKS} <= {*methods.method}


def test_the_whole_sweep_is_shown(sweep):
    first, *_ = draw.sweep_map(sweep).axes
    shown = [t for t in first.texts if t.get_text() not in ("none", "batch", "question")]
    tried = sweep[sweep.method == "REINFORCE"][tables.OPTIONS].drop_duplicates()
    assert len(shown) == len(tried) == 94
    first, *_ = draw.sweep_dots(sweep).axes
    dots = sum(len(line.get_xdata()) for line in first.lines if line.get_marker() == "o")
    assert dots == len(sweep[["method", *tables.OPTIONS]].drop_duplicates())


def test_a_contest_is_the_paired_t_test(methods):
    a, b = draw.CONTESTS[0]
    table = tables.contest(methods, a, b)
    wide = tables.scores(methods).pivot_table("test", ["budget", "seed"], "method")
    assert table.index.tolist() == sorted(tables.scores(methods).budget.unique())
    for budget, row in table.iterrows():
        x, y = wide.loc[budget][a], wide.loc[budget][b]
        assert row.n == len(x) >= 10 and row.difference == pytest.approx((x - y).mean())
        assert row.difference / row.se == pytest.approx(ttest_rel(x, y).statistic)
        assert row.effect == pytest.approx(row.difference / (x - y).std())


def test_nobody_wins_by_next_to_nothing():
    same = np.array([0.5, 0.6, 0.7])
    assert tables.verdict(same + 0.005, same)["winner"] == "nobody"
    assert tables.verdict(same, same) | {"effect": 0} == tables.verdict(same, same)
    assert tables.verdict(same + 0.5, same)["winner"] == "a" and tables.verdict(same, same + 0.5)["winner"] == "b"
    assert tables.verdict(same + 0.5, same)["effect"] > 100
    assert tables.verdict([0.9, 0.1, 0.9], [0.1, 0.5, 0.2])["winner"] == "nobody"


def test_settings_are_means_over_seeds(sweep):
    table = tables.settings(sweep, seeds=[101, 102])
    row = table[(table.method == "OpenAI-ES") & (table.lr == 0.3) & (table.sigma == 1) & (table.pairs == 17)].iloc[0]
    mine = sweep[(sweep.method == "OpenAI-ES") & (sweep.lr == 0.3) & (sweep.sigma == 1) & (sweep.pairs == 17)]
    mine = mine[(mine.budget == row.budget) & mine.seed.isin([101, 102])].validation
    assert len(mine) == 2 and row["mean"] == pytest.approx(mine.mean())
    assert row.se == pytest.approx(abs(mine.iloc[0] - mine.iloc[1]) / 2)


def test_the_best_of_k_by_brute_force():
    rng = np.random.default_rng(0)
    for n, k in ((5, 1), (6, 2), (7, 4), (6, 6)):
        a, b = rng.random(n), rng.random(n)
        wanted = np.mean([b[max(s, key=lambda j: a[j])] for s in itertools.combinations(range(n), k)])
        assert tables.expected_best(a, b, k) == pytest.approx(wanted)


def test_the_map_takes_as_many_worlds_as_there_are(record):
    worlds = record[["world", "turns"]].drop_duplicates()
    for n in (1, len(worlds)):
        part = record.merge(worlds.head(n))
        table = tables.winners(part)
        assert len(table) == n * record.budget.nunique() * record.tuning.nunique()
        assert len(draw.winner_map(part).axes[0].texts) == len(table)
    assert table.uniform.is_monotonic_increasing
    turned = record.assign(method=record.method.map({"REINFORCE": "sep-CMA-ES", "sep-CMA-ES": "REINFORCE"}))
    swapped = tables.winners(turned).winner.map({"a": "b", "b": "a", "nobody": "nobody"})
    assert swapped.tolist() == tables.winners(record).winner.tolist()
    assert isinstance(draw.winner_map(turned), Figure)
