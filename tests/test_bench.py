"""The quick forms of the benchmarks give sane rows; whether they are fast enough is for a quiet machine."""

import math

import pytest
from world import PRESET, LetterPool, coordinator

from trinity_mini import __main__ as cli
from trinity_mini import worlds
from trinity_mini.task_sets import embedded_tasks

KEYS = {"name", "family", "value", "se", "n", "unit"}


def sane(rows):
    assert rows and len({r["name"] for r in rows}) == len(rows)
    for r in rows:
        assert set(r) == KEYS and math.isfinite(r["value"]) and r["n"] >= 1, r
        assert r["se"] is None or (math.isfinite(r["se"]) and r["se"] >= 0), r
    return {r["name"]: r["value"] for r in rows}


def test_svf():
    from trinity_mini.bench_svf import bench_svf

    values = sane(bench_svf(quick=True))
    assert values["largest difference"] < 1e-4
    bound = [values[f"bound by operation count, all at once{more}"] for more in ("", ", cached below")]
    assert 1 < bound[0] < bound[1]
    assert values["speed-up, all at once"] > 1 and values["speed-up, all at once, cached below"] > 1


def test_es():
    from trinity_mini.bench_es import bench_es

    values = sane(bench_es(quick=True))
    ratios = {name: v for name, v in values.items() if name.startswith("ours / ")}
    assert any("pycma" in name for name in ratios) and min(ratios.values()) > 0
    [evaluations] = [v for name, v in ratios.items() if "pycma" in name and "ellipsoid" in name]
    assert 0.5 < evaluations < 2


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    asked = []

    def world(name, folder):
        asked.append(name)
        return worlds.World(LetterPool(tmp_path), coordinator(3), PRESET, embedded_tasks(PRESET))

    monkeypatch.setattr(worlds, "world", world)
    return asked


def test_episodes(tiny, tmp_path, monkeypatch):
    from trinity_mini.bench_episodes import bench_episodes

    monkeypatch.chdir(tmp_path)
    values = sane(bench_episodes(quick=True))
    for name in ("uncached", "cached"):
        assert values[f"episodes, replies {name}"] > 0
        assert 1 <= values[f"calls, replies {name}"] <= 5 and 0 < values[f"coordinator's share, replies {name}"] < 1
    assert tiny == ["quick"] and not list(tmp_path.iterdir())


def test_the_command_prints_what_it_measured(tiny, capsys):
    assert cli.main(["bench", "episodes", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and all("(n = " in line for line in lines)
