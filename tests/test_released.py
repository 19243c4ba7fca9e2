"""The released vector as a theta of ours: the oracle writes its blocks into a transformers model by numpy alone."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_backbone import TEXTS, Backbone, chat_tokenizer, model, oracle
from test_full_scale import qwen3_06b, replaced

from trinity_mini.coordinator import Coordinator
from trinity_mini.files import UserError
from trinity_mini.released import from_released, load_released
from trinity_mini.roles import Role


def coordinator(kind="qwen3", **options):
    return Coordinator(Backbone(model(kind), chat_tokenizer()), 4, **({"matrices": "released"} | options))


def released_vector(c, seed=0):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(0, 0.2, c.n_svf), rng.normal(0, 0.1, c.n_head)])


def by_hand(vector, kind, texts, agents=4):
    """Logits of the released code: matrices in the order of state_dict, all others skipped; then W h."""
    lm = model(kind)
    tensors = {k: w for k, w in lm.state_dict().items() if w.ndim == 2 and ("layers" not in k or "layers.2." in k)}
    assert len(tensors) == 9
    plain, at = {k: w.clone() for k, w in tensors.items()}, 0
    with torch.no_grad():
        for name, w in plain.items():
            n = min(w.shape)
            lm.get_parameter(name).copy_(replaced(w, vector[at : at + n]))
            at += n
    head = torch.from_numpy(vector[at:]).float().view(agents + 3, -1)
    tokenizer = Backbone(lm, chat_tokenizer())
    return torch.stack([head @ oracle(lm, tokenizer.encode(t)) for t in texts])


@pytest.mark.parametrize("kind, tied", [("qwen3", True), ("qwen2", False)])
def test_it_decides_as_the_released_code(kind, tied, tmp_path):
    c = coordinator(kind)
    assert (len(c.backbone.svf("released").inert) == 1) is tied
    vector = released_vector(c)
    np.save(tmp_path / "vector.npy", vector)
    theta = load_released(tmp_path / "vector.npy", c)
    agent, role = c.logits(TEXTS, theta)
    wanted = by_hand(vector, kind, TEXTS)
    torch.testing.assert_close(torch.cat((agent, role), dim=1), wanted, atol=1e-4, rtol=0)
    # Every block matters but the embeddings' own where the LM head is tied to them.
    at = 0
    for size in [min(w.shape) for w in c.backbone.svf("released").saved.values()]:
        other = vector.copy()
        other[at : at + size] += np.linspace(-0.5, 0.5, size)
        dead = at == 0 if tied else at == c.n_svf - size
        changed = (torch.cat(c.logits(TEXTS, from_released(other, c)), dim=1) - wanted).abs().max()
        assert (changed > 1e-3) is not dead, at
        at += size


def test_logits_are_w_h_whatever_the_scale():
    c = coordinator()
    vector = released_vector(c)
    vector[: c.n_svf] = 0
    c.backbone.scale = 3.7
    wanted = c.backbone.hidden(TEXTS) @ torch.from_numpy(vector[c.n_svf :]).float().view(7, -1).T
    torch.testing.assert_close(torch.cat(c.logits(TEXTS, from_released(vector, c)), dim=1), wanted, atol=1e-5, rtol=0)


def test_roles_stand_in_the_released_order():
    assert [r.name for r in sorted(Role)] == ["WORKER", "THINKER", "VERIFIER"]  # solver, thinker, verifier there


def test_the_full_size_goes_to_the_right_places():
    c = Coordinator(Backbone(qwen3_06b(), None), 7, matrices="released")
    theta = from_released(np.arange(19_456), c)
    blocks = theta[:9216].reshape(9, 1024)
    assert (np.diff(blocks, axis=1) == 1).all()
    # Ours: q k v o gate up down, embeddings (live: the LM head's block), LM head (inert: the embeddings' block).
    assert (blocks[:, 0] // 1024).tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 0]
    assert np.array_equal(theta[9216:], 32.0 * np.arange(9216, 19_456))  # sqrt(1024)


def write(path, vector):
    kind = path.suffix
    if kind == ".npy":
        np.save(path, vector.astype(np.float32))
    elif kind == ".npz":
        np.savez(path, theta=vector.astype(np.float32))
    elif kind == ".json":
        path.write_text(json.dumps(vector.astype(np.float32).tolist()), encoding="utf-8")
    elif kind == ".safetensors":
        save_file({"vector": torch.from_numpy(vector).float()}, path)
    elif path.stem == "dict":
        torch.save({"vector": torch.from_numpy(vector).float()}, path)
    else:
        torch.save(torch.from_numpy(vector).float(), path)
    return path


NAMES = ["v.npy", "v.npz", "v.json", "v.safetensors", "v.pt", "dict.pt"]


@pytest.mark.parametrize("name", NAMES)
def test_every_format(name, tmp_path):
    c = coordinator()
    vector = released_vector(c)
    theta = load_released(write(tmp_path / name, vector), c)
    assert np.array_equal(theta, from_released(vector.astype(np.float32), c))


def test_a_checkpoint_of_ours_from_it(tmp_path):
    c = coordinator()
    theta = load_released(write(tmp_path / "v.npy", released_vector(c)), c)
    c.save(tmp_path / "theta.safetensors", theta, "pool", {"made from": "v.npy"})
    assert np.array_equal(c.load(tmp_path / "theta.safetensors", "pool"), theta)


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit(99)",))


@pytest.mark.parametrize("name", NAMES)
def test_damaged_or_dangerous_files(name, tmp_path):
    c, path = coordinator(), tmp_path / name
    with pytest.raises(UserError, match="check the path"):
        load_released(path, c)
    content = write(path, released_vector(c)).read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"\x93NUMPY" + content):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="fetch the file again") as caught:
            load_released(path, c)
        assert str(caught.value).count(". ") == 0
    evil = np.array([Evil()], dtype=object)
    if path.suffix in (".npy", ".npz"):
        (np.save if path.suffix == ".npy" else np.savez)(path, evil, allow_pickle=True)
    elif path.suffix == ".pt":
        torch.save(Evil(), path)
    with pytest.raises(UserError, match="fetch the file again"):
        load_released(path, c)


def test_what_does_not_fit(tmp_path):
    c = coordinator()
    vector = released_vector(c)
    with pytest.raises(UserError, match="number of agents"):
        from_released(vector[:-1], c)
    with pytest.raises(UserError, match="number of agents"):
        from_released(vector[None], c)
    for bad in (np.nan, np.inf, 1e39):
        with pytest.raises(UserError, match="not finite"):
            from_released(np.where(np.arange(c.n) == 5, bad, vector), c)
    path = write(tmp_path / "v.npy", vector)
    for other in ({"matrices": "paper"}, {"head": "low-rank"}):
        with pytest.raises(UserError, match="build that one"):
            load_released(path, coordinator(**other))
    with pytest.raises(UserError, match="known ending"):
        load_released(tmp_path / "v.bin", c)
    two = tmp_path / "two.safetensors"
    save_file({"a": torch.zeros(c.n), "b": torch.zeros(c.n)}, two)
    with pytest.raises(UserError, match="one vector"):
        load_released(two, c)
    c.backbone.measure(TEXTS)
    with pytest.raises(UserError, match="centres"):
        load_released(path, c)
