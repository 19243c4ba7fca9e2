"""Training that is killed goes on where it was, to the same weights."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from trinity_mini.files import UserError
from trinity_mini.fit import fit
from trinity_mini.tiny_lm import TinyConfig, TinyLM

HERE = Path(__file__).resolve().parent
CONFIG = TinyConfig(d=16, layers=1, heads=2, ff=16)


def train(state_file, steps=8, label="x", pause=0.0, at=(), save_every=0.0, seed=0):
    """Fit a small model to random text; `at`: call numbers at which something goes wrong."""
    model, rng, calls = TinyLM(CONFIG, seed), np.random.default_rng(seed), 0
    mask, positions = torch.ones(9, 9, dtype=torch.bool).tril()[None, None], torch.arange(9).expand(4, 9)

    def loss(model):
        nonlocal calls
        calls += 1
        time.sleep(pause)
        if calls in at:
            raise KeyboardInterrupt
        ids = torch.from_numpy(rng.integers(1, 30, (4, 10)))
        logits = model.logits(model(ids[:, :-1], mask, positions))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def set_state(state):
        rng.bit_generator.state = state

    stream = (lambda: rng.bit_generator.state, set_state)
    seconds = fit(model, loss, stream, steps, Path(state_file), label, save_every=save_every)
    return model, calls, seconds


def assert_same(a, b):
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def test_an_interruption_changes_nothing(tmp_path, global_streams_untouched):
    whole, calls, _ = train(tmp_path / "a.pt")
    assert calls == 8 and not whole.training and not any(p.requires_grad for p in whole.parameters())
    for at in (3, 1, 4):  # two steps done, none more, three more
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "b.pt", at=[at])
    resumed, calls, seconds = train(tmp_path / "b.pt")
    assert calls == 8 - 2 - 0 - 3 and seconds > 0
    assert_same(resumed, whole)


def test_what_was_not_saved_is_done_again(tmp_path):
    whole, _, _ = train(tmp_path / "a.pt", save_every=1e9)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "b.pt", at=[5], save_every=1e9)
    assert not (tmp_path / "b.pt").exists()
    assert_same(train(tmp_path / "b.pt")[0], whole)


def test_killed_in_the_middle_it_ends_with_the_same_weights(tmp_path):
    code = "import sys; sys.path.insert(0, sys.argv[1]); from test_fit import train; train(sys.argv[2], 30, pause=0.2)"
    state = tmp_path / "killed.pt"
    child = subprocess.Popen([sys.executable, "-c", code, str(HERE), str(state)], cwd=HERE.parent)
    try:
        deadline = time.monotonic() + 120
        while not state.exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.25)  # a few steps more; where it is hit is chance
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    resumed, calls, _ = train(state, 30)
    assert 0 < calls < 30
    assert_same(resumed, train(tmp_path / "whole.pt", 30)[0])


def test_a_finished_training_is_not_done_again(tmp_path):
    first, _, seconds = train(tmp_path / "a.pt")
    again, calls, more = train(tmp_path / "a.pt")
    assert calls == 0 and more > seconds / 2
    assert_same(first, again)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"not a state",
    ],
    ids=["truncated", "empty", "foreign"],
)
def test_a_damaged_state_file_is_named_with_its_remedy(tmp_path, damage):
    path = tmp_path / "a.pt"
    train(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"a\.pt is damaged.*delete it to begin again"):
        train(path)


def test_a_state_file_with_other_contents_is_damaged(tmp_path):
    torch.save({"model": {}, "step": 3}, tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"a\.pt is damaged.*delete it"):
        train(tmp_path / "a.pt")


@pytest.mark.parametrize("other", [{"label": "y"}, {"steps": 9}])
def test_a_state_file_of_another_run_is_refused(tmp_path, other):
    train(tmp_path / "a.pt")
    with pytest.raises(UserError, match=r"a\.pt is of another run"):
        train(tmp_path / "a.pt", **other)


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path):
    def nan(model):
        return sum(p.sum() for p in model.parameters()) * float("nan")

    with pytest.raises(UserError, match="diverged at step 0: choose another seed"):
        fit(TinyLM(CONFIG), nan, (dict, lambda state: None), 3, tmp_path / "a.pt", "x")


def test_the_loss_goes_down(tmp_path):
    """Forty steps on one sentence."""
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    mask, positions = torch.ones(7, 7, dtype=torch.bool).tril()[None, None], torch.arange(7)[None]
    values = []

    def loss(model):
        logits = model.logits(model(ids[:, :-1], mask, positions))
        value = torch.nn.functional.cross_entropy(logits[0], ids[0, 1:])
        values.append(value.item())
        return value

    fit(TinyLM(CONFIG), loss, (dict, lambda state: None), 40, tmp_path / "a.pt", "x")
    assert values[-1] < 0.8 * values[0]
