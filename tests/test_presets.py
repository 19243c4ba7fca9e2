"""Presets: the paper's numbers, and names that are not known."""

import json
from dataclasses import FrozenInstanceError

import pytest
from world import coordinator

from trinity_mini.files import UserError
from trinity_mini.presets import EMBEDDED, PRESETS, Preset, preset
from trinity_mini.task_sets import embedded_tasks


def test_the_defaults_are_the_papers():
    p = Preset("x")
    assert (p.head, p.matrices, p.selection, p.rules.max_turns) == ("linear", "paper", "sample", 5)
    assert p.generations == 60 and p.popsize * p.episodes_per_candidate == 34 * 16  # the released run's budget


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_named_makes_a_coordinator_and_survives_its_record(name):
    p = preset(name)
    assert p.name == name
    assert coordinator(5, head=p.head, matrices=p.matrices, selection=p.selection).n > 0
    assert json.loads(json.dumps(p.record()))["rules"]["max_turns"] == p.rules.max_turns
    assert p.generations > 0 and p.episodes_per_candidate > 0 and p.train_per_family > 0


@pytest.mark.parametrize("name", [n for n, p in PRESETS.items() if p.tasks == EMBEDDED])
def test_the_world_holds_the_questions_of_a_preset(name):
    p = preset(name)
    tasks = embedded_tasks(p)
    assert [len(f) for f in tasks.train] == [p.train_per_family] * 4
    assert len(tasks.validation) == 4 * p.validation_per_family


def test_a_preset_cannot_be_changed_by_accident():
    with pytest.raises(FrozenInstanceError):
        preset("mini").sigma0 = 1.0


@pytest.mark.parametrize("name", ["", "MINI", "paper2"])
def test_an_unknown_name_lists_the_known(name):
    with pytest.raises(UserError, match="choose from .*mini"):
        preset(name)


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"head": "cubic"}, "unknown head 'cubic': choose one of linear"),
        ({"matrices": "all"}, "no matrix set 'all': choose paper"),
        ({"selection": "best"}, "unknown selection 'best': choose sample or argmax"),
    ],
)
def test_a_wrong_part_is_named_with_the_choices(wrong, says):
    with pytest.raises(UserError, match=says):
        coordinator(2, **wrong)


def test_a_record_names_what_is_not_embedded():
    assert not {"slm", "pool", "tasks"} & set(Preset("x").record())
    given = {"slm": "smollm2", "pool": "p.toml", "tasks": "mmlu"}
    assert {k: v for k, v in Preset("x", **given).record().items() if k in given} == given
