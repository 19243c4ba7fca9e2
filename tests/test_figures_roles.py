"""The figures of lesson 10 draw what the rows say, from few rows as from many."""

import io

import numpy as np
import pandas as pd
import PIL.Image
import pytest
from test_claims import ablations, evaluation, write

from trinity_mini import figures_roles as figures
from trinity_mini.claims import Recorded
from trinity_mini.files import DATA
from trinity_mini.role_tables import against_full, paper_form
from trinity_mini.tasks import FAMILIES, HARD_FAMILIES
from trinity_mini.widgets import png


def rows(seeds=3, generations=(0, 30, 60)):
    """Made-up rows of `emergence`: agent 0 thinks at turn 1, agent 3 works later, more so in later generations."""
    rng, out = np.random.default_rng(0), []
    for seed in range(1, seeds + 1):
        for g in generations:
            counts = rng.multinomial(200 - 3 * g, np.full(15, 1 / 15), (4, 5)).reshape(4, 5, 5, 3)
            counts[:, 0, 0, 1] += 3 * g
            counts[:, 1:, 3, 0] += 3 * g
            accuracy = 0.1 + g / 80
            out.append(
                {
                    "what": "generation",
                    "seed": seed,
                    "generation": g,
                    "counts": counts.tolist(),
                    "n": 800,
                    "accuracy": accuracy,
                    "turns": 4.9,
                    "mi_bits": g / 100,
                    "mi_chance": 0.01,
                    "mi_most": 2.0,
                    **dict.fromkeys(FAMILIES, accuracy),
                }
            )
        names = [
            *HARD_FAMILIES,
            *(f"{f}, uniform policy" for f in HARD_FAMILIES),
            "without ada",
            "ada and bo exchanged",
        ]
        out += [{"what": "transfer", "seed": seed, "to": to, "accuracy": 0.5 + 0.01 * seed} for to in names]
    return pd.DataFrame(out)  # fmt: skip


def whole(figure):
    """Whether it can be drawn, with nothing dark at its edge."""
    grey = np.asarray(PIL.Image.open(io.BytesIO(png(figure, 80))).convert("L"))
    return min(edge.min() for edge in (grey[0], grey[-1], grey[:, 0], grey[:, -1])) > 200


@pytest.mark.parametrize("frames", [(0, 30, 60), (30,), (0, 60)])
def test_the_film_shows_the_shares(frames):
    e = rows()
    figure = figures.film(e, 2, frames)
    pictures = [ax for ax in figure.axes if ax.images]
    assert len(pictures) == len(FAMILIES) * len(frames) and whole(figure)
    shown = pictures[0].images[0].get_array()
    counts = figures.counts_at(e, frames[0], 2)[0]
    assert shown.shape == (15, 5)
    assert shown[0, 0] == pytest.approx(counts[0, 0, 1] / counts[0].sum())  # first line: the first agent as Thinker
    assert shown[5 + 3, 4] == pytest.approx(counts[4, 3, 0] / counts[0].sum())  # a Worker below


def test_a_moment_that_was_not_recorded():
    with pytest.raises(ValueError, match="generation 5 of seed 1"):
        figures.counts_at(rows(), 5, 1)


def test_curves_are_means_over_the_seeds():
    e = rows()
    figure = figures.emergence_curves(e)
    assert whole(figure) and len(figure.axes) == 3
    thick = figure.axes[1].containers[0].lines[0]
    np.testing.assert_allclose(np.array(thick.get_ydata(), dtype=float), [0.1 + g / 80 for g in (0, 30, 60)])


def test_the_map_of_seeds_names_who_speaks():
    figure = figures.seed_map(rows())
    assert whole(figure)
    thinkers, workers, _ = figure.axes
    first = {t.get_position(): t.get_text() for t in thinkers.texts}
    assert first[0, 0].split("\n")[0] == figures.agents()[0]
    assert {t.get_text() for t in workers.texts} == {figures.agents()[3]}


def graph():
    counts = pd.DataFrame(0, ["start", "ada Thinker", "bo Worker"], ["ada Thinker", "bo Worker", "end"])
    counts.loc["start", "ada Thinker"] = counts.loc["ada Thinker", "bo Worker"] = 100
    counts.loc["bo Worker", ["bo Worker", "end"]] = 50, 100
    counts.loc["ada Thinker", "end"] = 1  # too rare to be drawn
    return counts


def test_arrows_of_the_transition_graph():
    figure = figures.transition_graph({"a": graph(), "b": graph()})
    assert whole(figure)
    arrows = [p for p in figure.axes[0].patches if type(p).__name__ == "FancyArrowPatch"]
    assert len(arrows) == 4
    thick = {round(float(a.get_linewidth()), 3) for a in arrows}
    assert len(thick) == 2  # a hundred and fifty of a hundred and one episodes
    labels = [t.get_text() for t in figure.axes[0].texts]
    assert any(text.startswith("bo W\n1.49") for text in labels)


@pytest.fixture
def recorded(tmp_path):
    more = [r | dict.fromkeys(FAMILIES, 0.5) for r in ablations()]
    write(tmp_path, "ablations", more)
    e = evaluation() + [r | {"family": f} for r in evaluation() for f in FAMILIES]
    pd.DataFrame(e).to_json(tmp_path / "evaluation.json", orient="records")
    return Recorded(tmp_path)


def test_the_table_of_ablations(recorded):
    table = against_full(recorded).set_index("variant")
    assert list(table.index[:3]) == ["full", "with SVF", "full, judged by argmax"]
    assert table.loc["full", "accuracy"] == pytest.approx(0.9) and table.loc["full", "pairs"] == 0
    thinker = table.loc["no Thinker"]
    assert (thinker["difference"], thinker["difference_se"]) == (pytest.approx(-0.7), pytest.approx(0.005))
    assert thinker["ahead"] == "no" and thinker["pairs"] == 4 and thinker["paper"] == pytest.approx(-1.75, abs=0.02)
    assert table.loc["no Verifier", "ahead"] == "open" and np.isnan(table.loc["no Verifier", "paper"])
    assert table.loc["with SVF", "paper"] == pytest.approx(2.59, abs=0.02)
    assert table.loc["full, judged by argmax", "difference"] == pytest.approx(0)
    assert whole(figures.ablation_dots(against_full(recorded)))


def test_the_form_of_the_papers_table(recorded):
    table = paper_form(recorded).set_index("row")
    assert list(table.index[:3]) == ["full", "no SVF", "no Thinker"] and "REINFORCE" not in table.index
    assert table.loc["full", "all"] == pytest.approx(0.95) and table.loc["no SVF", "all"] == pytest.approx(0.9)
    assert table.loc["full", "LCB"] == 61.46 and np.isnan(table.loc["no Verifier", "mean"])


def test_one_seed_has_no_error_and_is_drawn(recorded):
    a = recorded.ablations
    recorded.ablations = a[(a["variant"] == "full") | (a["seed"] == 1)]
    table = against_full(recorded).set_index("variant")
    assert table.loc["no Thinker", "n"] == 1 and table.loc["no Thinker", "ahead"] == ""
    assert whole(figures.ablation_dots(table.reset_index()))


def test_transfer_is_drawn_with_its_means():
    figure = figures.transfer_bars(rows())
    assert whole(figure)
    widths = [b.get_width() for b in figure.axes[1].patches]
    assert widths == pytest.approx([0.85, 0.52, 0.52])


@pytest.mark.parametrize("name", figures.FIGURES)
def test_every_recorded_figure_can_be_drawn(name):
    needed = "ablations" if name == "roles_ablations" else "emergence"
    if not (DATA / "runs" / f"{needed}.jsonl").exists():
        pytest.skip(f"{needed} is not recorded yet")
    assert whole(figures.FIGURES[name]())
