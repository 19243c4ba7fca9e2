"""What README.md says is so: figures, commands, files, targets."""

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from trinity_mini.__main__ import parser
from trinity_mini.claims import as_text, claims
from trinity_mini.commands import as_lines
from trinity_mini.evaluation import wide
from trinity_mini.files import DATA, ROOT
from trinity_mini.make_pool import show
from trinity_mini.presets import PRESETS
from trinity_mini.study import MODULES

README = (ROOT / "README.md").read_text(encoding="utf-8")
RECORDED = re.compile(r"<!-- recorded: ([\w-]+) -->\s*\n```[^\n]*\n(.*?)\n```", re.DOTALL)
CODE = re.findall(r"^```[^\n]*\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
INLINE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE))
MADE_LATER = ("runs/", ".venv", ".git", "my_pool.toml")  # named in README, made by a command


def evaluation_table():
    rows = json.loads((DATA / "runs" / "evaluation.json").read_text(encoding="utf-8"))
    table = pd.DataFrame([r for r in rows if r["unit"] == "accuracy"])
    return wide(table[["name", "family", "value", "se", "n"]])


def skill_table():
    return show(pd.read_csv(DATA / "tiny_pool" / "skills.csv"))


def bench_lines(name="bench"):
    return as_lines(json.loads((DATA / "runs" / f"{name}.json").read_text(encoding="utf-8")))


def claims_lines():
    return as_text(claims())


TABLES = {
    "evaluation": evaluation_table, "skills": skill_table, "claims": claims_lines, "bench": bench_lines,
    "states": lambda: bench_lines("bench_states"),
}  # fmt: skip


def lines(text):
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.parametrize("name", TABLES)
def test_a_recorded_table_is_what_its_file_gives(name):
    blocks = [text for found, text in RECORDED.findall(README) if found == name]
    assert len(blocks) == 1, f"README.md needs one fenced block after the line <!-- recorded: {name} -->"
    assert lines(blocks[0]) == lines(TABLES[name]())


def test_every_recorded_mark_has_a_block_and_a_test():
    marks = re.findall(r"<!-- recorded: (.*?) -->", README)
    assert marks == [name for name, _ in RECORDED.findall(README)]
    assert set(marks) <= set(TABLES)


def test_the_time_of_the_recorded_trainings_is_what_their_files_say():
    runs = [pd.read_json(f, lines=True) for f in sorted((DATA / "runs").glob("mini-*/timing.jsonl"))]
    assert len(runs) == 5
    cpu, share = [t.cpu.sum() for t in runs], [100 * t.coordinator.sum() / t.cpu.sum() for t in runs]
    text = " ".join(README.split())
    assert f"took {min(cpu):.0f} to {max(cpu):.0f} CPU-seconds each, validation included" in text
    assert f"was {min(share):.0f} to {max(share):.0f} % of them" in text


def test_the_cost_of_the_studies_is_what_their_files_say():
    heads = [json.loads(f.read_text(encoding="utf-8").splitlines()[0]) for f in (DATA / "runs").glob("*.jsonl")]
    assert {h["study"] for h in heads} == set(MODULES)
    hours = sum(h["cpu"] for h in heads) / 3600
    assert hours <= 16  # eight hours on two cores
    assert f"{hours:.1f} CPU-hours in all" in " ".join(README.split())


COMMANDS = [
    re.sub(r"\b[A-Z]\b", "1", c.split("  ")[0].split("#")[0].strip())  # K stands for a number
    for text in [*CODE, *INLINE]
    for c in re.findall(r"python(?:\.exe)? -m trinity_mini([^\n]*)", text)
]


def test_its_python_runs(tmp_path, monkeypatch, capsys):
    [program] = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)  # runs/ is made here
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and (tmp_path / "runs" / "own-1" / "theta.safetensors").exists()
    assert 0 < eval(lines[-1], {"nan": float("nan")})[0] <= 1


def test_readme_names_every_command():
    known = next(a for a in parser()._actions if a.dest == "command").choices
    assert {shlex.split(c)[0] for c in COMMANDS if c} == set(known)


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS if c}))
def test_a_command_can_be_given(command):
    parser().parse_args(shlex.split(command))


@pytest.mark.parametrize("what", ["svf", "es", "episodes", "states"])
def test_a_benchmark_can_be_given(what):
    assert f"`{what}`" in README or f"bench {what}" in README
    parser().parse_args(["bench", what])


def test_every_preset_has_a_line_with_its_size():
    rows = {m[1]: m[0] for m in re.findall(r"^(\| `([\w-]+)` \|.*)$", README, re.MULTILINE)}
    assert set(rows) >= set(PRESETS) - {"quick"}
    recorded = {"mini": "mini-1", "laptop": "laptop-1"}
    sizes = {name: json.loads((DATA / "runs" / run / "config.json").read_text())["coordinator"]["n"]
             for name, run in recorded.items()}  # fmt: skip
    sizes |= {"gpu": 9216 + (5 + 3) * 1024, "paper": 9216 + (7 + 3) * 1024}
    for name, n in sizes.items():
        assert f"n = {n:,}" in rows[name]


OPTIONS = sorted({o for text in INLINE for o in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)})


@pytest.mark.parametrize("option", OPTIONS or [""])
def test_an_option_exists(option):
    commands = next(a for a in parser()._actions if a.dest == "command").choices.values()
    known = {s for p in [parser(), *commands] for a in p._actions for s in a.option_strings}
    assert option in known | {""}


def targets():
    return sorted({t for text in [*CODE, *INLINE] for t in re.findall(r"^\s*make ([\w-]+)", text, re.MULTILINE)})


@pytest.mark.parametrize("target", targets())
def test_a_target_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_three_targets_are_named():
    assert set(targets()) >= {"train", "test", "lab"}


def named_paths():
    """Words that look like a file or folder of this repository, and the targets of links."""
    words = [w.strip("(),;:") for text in INLINE for w in text.split()]
    code = [w for text in CODE for w in text.split() if re.fullmatch(r"[\w./-]+\.(?:ipynb|py|md|toml|csv|json|yml)", w)]
    links = [t for t in re.findall(r"\]\(([^)\s]+)\)", README) if "://" not in t and not t.startswith("#")]
    found = {w for w in [*words, *code] if re.fullmatch(r"\.?[\w-][\w./-]*", w) and _pathlike(w)}
    return sorted({p for p in found | {t.split("#")[0] for t in links} if not p.startswith(MADE_LATER)})


def _pathlike(word):
    if re.fullmatch(r"[\d./-]+", word) or word.startswith("trinity_mini."):
        return False
    return "/" in word or bool(re.search(r"\.(ipynb|py|md|toml|csv|json|yml|png|safetensors|cfg)$", word))


@pytest.mark.parametrize("path", named_paths())
def test_a_named_file_exists(path):
    places = [ROOT, ROOT / "notebooks", ROOT / "trinity_mini", ROOT / "data"]
    assert any((place / path).exists() for place in places), path


def test_pictures_have_a_text():
    assert all(alt.strip() for alt in re.findall(r"!\[([^\]]*)\]", README))
    assert Path(ROOT / "README.md").stat().st_size < 40_000
