"""The figures of lesson 08: from recorded data, in seconds, and with the numbers of a small made-up study."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from trinity_mini import figures_separability as figures
from trinity_mini import separability_tables as tables
from trinity_mini.separability_studies import STUDIES
from trinity_mini.study import frame


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_drawn_from_the_recorded_data(name):
    figure = figures.FIGURES[name]()
    assert isinstance(figure, Figure) and figure.get_figwidth() <= 9.6
    drawn = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert all(ax.get_xlabel() or ax.images or ax.get_xticklabels() for ax in drawn)
    figure.canvas.draw()
    assert all(ax.has_data() for ax in drawn)


def test_stems_are_files_of_this_lesson():
    assert all(name.startswith("separability_") and name.isidentifier() for name in figures.FIGURES)


def pairs(values, **about):
    """Rows of two blocks' couplings: own 1, between as given."""
    rows = [("a", "a", 1.0), ("a", "b", values), ("b", "b", 1.0)]
    return [about | {"block": p, "other": q, "eps": e, "F": 1.0} for p, q, e in rows]


@pytest.fixture
def head():
    rows = []
    for seed, shift in ((1, 0.0), (2, 0.2)):
        for generation in (0, 30, 60):
            for partition in tables.PARTITIONS:
                for name, eps in ((partition, 0.4), (f"random, like {partition}", 0.9)):
                    about = {"seed": seed, "generation": generation, "partition": name, "kind": "coupling"}
                    rows += pairs(eps + shift, source="exact", **about)
            rows += pairs(0.7, source="episodes", seed=seed, generation=generation, partition="agents, roles",
                          kind="coupling", low=0.1, high=1.2, p=0.01, episodes=100, h=10)
    return pd.DataFrame(rows)


def test_a_matrix_is_symmetric_and_the_mean_over_seeds(head):
    names, values = tables.matrix(tables.exact(head, "rows", 60))
    assert names == ["a", "b"]
    np.testing.assert_allclose(values, [[1, 0.5], [0.5, 1]])


def test_means_are_those_between_different_blocks(head):
    found = tables.means(head).pivot(index=["generation", "seed"], columns="partition", values="eps")
    np.testing.assert_allclose(found.loc[(60, 2), "states"], 0.6)
    np.testing.assert_allclose(found.loc[(0, 1), "random, like rows"], 0.9)


def test_measurements_by_episodes_stand_beside_the_exact_value(head):
    rows = tables.measured(head)
    assert len(rows) == 6 and (rows["eps"] == 0.7).all()
    np.testing.assert_allclose(rows.sort_values("seed")["exact"], [0.4] * 3 + [0.6] * 3)


def test_gains_are_paired_by_seed():
    ways = {"adapts": (0.5, 0.9), "frozen": (0.4, 0.6), "random": (0.0, 0.0)}
    rows = [
        {"seed": s, "way": way, "generation": g, "test": values[s - 1] * g / 60, "spread": 0.1}
        for way, values in ways.items() for s in (1, 2) for g in (0, 60)
    ]
    last = tables.gains(pd.DataFrame(rows)).iloc[-1]
    assert (last["difference"], last["se"], last["n"]) == (pytest.approx(0.2), pytest.approx(0.1), 2)
    assert last["episodes"] == 32_640
    methods = pd.DataFrame(
        [{"seed": s, "method": m, "budget": 1500.0, "test": 0.1 * s * (1 + (m == tables.METHODS[0]))}
         for s in (1, 2, 3) for m in tables.METHODS]
        + [{"seed": 1, "method": tables.METHODS[0], "budget": np.nan, "test": np.nan}]
    )
    row = tables.method_gains(methods).iloc[0]
    assert (row["episodes"], row["difference"], row["n"]) == (1500, pytest.approx(0.2), 3)


def test_the_heat_map_writes_every_number(head):
    figure = figures.coupling_map(head, "rows", 60)
    for ax in figure.axes[:2]:
        assert len(ax.texts) == 4
    assert "2 seeds" in figure.get_suptitle()


@pytest.mark.parametrize("study", [name for name in STUDIES if name != "separability-calibration"])
def test_recorded_rows_have_the_seeds_of_the_study(study):
    job = STUDIES[study].jobs[0]
    assert {*job} <= {*frame(study).columns}
