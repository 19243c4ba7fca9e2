"""The command that draws the figures of recorded data again, and the files it has left in figures/."""

import json

import PIL.Image
import pytest

from trinity_mini import __main__ as cli
from trinity_mini import figures_baselines, figures_roles, figures_separability
from trinity_mini.files import ROOT

NAMES = [*figures_separability.FIGURES, *figures_baselines.FIGURES, *figures_roles.FIGURES]


def test_a_name_is_given_once():
    assert len(set(NAMES)) == len(NAMES) > 20


def test_the_command_draws_what_is_asked_for(tmp_path, capsys):
    assert cli.main(["figures", NAMES[0], NAMES[-1], "--out", str(tmp_path), "--json", "-"]) == 0
    assert [r["name"] for r in json.loads(capsys.readouterr().out)] == [NAMES[0], NAMES[-1]]
    assert {f.name for f in tmp_path.iterdir()} == {f"{NAMES[0]}.png", f"{NAMES[-1]}.png"}


def test_an_unknown_figure_is_refused_before_anything_is_drawn(tmp_path, capsys):
    assert cli.main(["figures", NAMES[0], "mona_lisa", "--out", str(tmp_path)]) == 2
    assert "mona_lisa" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_picture_is_there_and_not_empty(name):
    with PIL.Image.open(ROOT / "figures" / f"{name}.png") as picture:
        assert min(picture.size) > 300
        assert len(picture.convert("L").getcolors(256)) > 5


def test_the_claims_are_printed(capsys):
    assert cli.main(["claims"]) == 0
    out = capsys.readouterr().out
    assert "sep-CMA-ES beats REINFORCE" in out and "n = " in out


def test_a_missing_study_is_named(tmp_path, capsys):
    assert cli.main(["claims", "--runs", str(tmp_path)]) == 2
    assert "separability-head" in capsys.readouterr().err
