"""The tiny language model against transformers' Qwen3, torch's Muon and itself one prompt at a time."""

import json
from dataclasses import asdict

import pytest
import torch

from trinity_mini import tiny_lm
from trinity_mini.files import UserError
from trinity_mini.tiny_lm import TOKENIZER, Muon, TinyConfig, TinyLM, greedy, orthogonalise, pad_left

SMALL = TinyConfig(d=32, layers=2, heads=4, ff=48)


def random_model(config=SMALL, seed=0, embedding=20.0):
    """A random model whose replies differ from prompt to prompt (larger embeddings than at the start of training)."""
    model = TinyLM(config, seed).eval().requires_grad_(False)
    model.model.embed_tokens.weight *= embedding
    return model


def random_prompts(n, seed=0, longest=40):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (n,), generator=g).tolist()
    return [torch.randint(1, len(TOKENIZER), (k,), generator=g).tolist() for k in lengths]


def full_logits(model, rows):
    """Logits of equally long rows, causal mask."""
    ids = torch.tensor(rows)
    t = ids.shape[1]
    mask = torch.ones(t, t, dtype=torch.bool).tril()[None, None]
    return model.logits(model(ids, mask, torch.arange(t).expand(ids.shape)))


# ---------------------------------------------------------------- tokenizer


def test_every_token_reads_back_and_padding_is_left_out():
    for i, token in enumerate(TOKENIZER.tokens[1:], start=1):
        assert TOKENIZER.encode(token) == [i]
        assert TOKENIZER.decode([0, i, 0]) == token
    assert len(set(TOKENIZER.tokens)) == len(TOKENIZER)


@pytest.mark.parametrize(
    "text, pieces",
    [
        ("revnum:ab", ["rev", "num", ":", "a", "b"]),
        ("symbol fe", ["symbol", " ", "f", "e"]),
        ("ACCEPTA", ["ACCEPT", "A"]),
        ("<math>x<", ["<math>", "x", "<"]),
        ("é\nX\U0001f600", ["_", "_", "_", "_"]),
        ("", []),
    ],
)
def test_text_is_split_into_words_and_characters(text, pieces):
    assert [TOKENIZER.tokens[i] for i in TOKENIZER.encode(text)] == pieces


# ---------------------------------------------------------------- the decoder is Qwen3's


@pytest.fixture(scope="module", params=["small", "agent"])
def pair(request):
    """One of our models and transformers' with the same weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    c = SMALL if request.param == "small" else TinyConfig()
    ours = random_model(c, seed=1)
    theirs = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=c.vocab, hidden_size=c.d, intermediate_size=c.ff, num_hidden_layers=c.layers,
            num_attention_heads=c.heads, num_key_value_heads=c.heads, head_dim=c.head_dim, rms_norm_eps=c.eps,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta}, tie_word_embeddings=True,
            max_position_embeddings=512, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    theirs.tie_weights()
    return ours, theirs.eval()


@torch.inference_mode()
def test_logits_are_those_of_transformers(pair):
    ours, theirs = pair
    rows = [p for p in random_prompts(40, longest=60) if len(p) > 50]
    for row in rows:
        got, wanted = full_logits(ours, [row]), theirs(torch.tensor([row])).logits
        scale = wanted.abs().max()
        torch.testing.assert_close(got / scale, wanted / scale, atol=1e-5, rtol=0)


@torch.inference_mode()
def test_greedy_is_generate_of_transformers(pair):
    ours, theirs = pair
    stop = TOKENIZER.ids["."]
    for prompt in random_prompts(6, seed=2):
        out = theirs.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=12, eos_token_id=stop, pad_token_id=0
        )
        reply = out[0, len(prompt) :].tolist()
        assert greedy(ours, [prompt], stop, 12) == [reply[: reply.index(stop)] if stop in reply else reply]


# ---------------------------------------------------------------- greedy decoding


def a_stop_that_comes(model, prompts):
    """The token that ends the most replies, so that rows leave the batch at different times."""
    replies = greedy(model, prompts, stop=-1, max_new=8)
    tokens = [t for reply in replies for t in set(reply)]
    return max(set(tokens), key=tokens.count)


def twins(model):
    """Make every second token all but the one before it: most best two logits are then near ties."""
    weight = model.model.embed_tokens.weight
    noise = torch.randn(weight[2::2].shape, generator=torch.Generator().manual_seed(3))
    weight[2::2] = weight[1:-1:2][: len(noise)] + 1e-6 * noise
    return model


def count_singles(model):
    sizes = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    return sizes


@pytest.mark.parametrize("n, near_ties", [(200, False), (60, True)])
def test_a_reply_does_not_depend_on_its_companions(n, near_ties, global_streams_untouched):
    model = random_model(TinyConfig(d=16, layers=1, heads=2, ff=16))
    if near_ties:
        twins(model)
    prompts = random_prompts(n)
    stop = a_stop_that_comes(model, prompts)
    singles = [greedy(model, [p], stop, 6)[0] for p in prompts]
    assert len({len(s) for s in singles}) > 3  # rows do end at different times
    for batch in (n, 7):
        sizes = count_singles(model)
        assert [r for i in range(0, n, batch) for r in greedy(model, prompts[i : i + batch], stop, 6)] == singles
        assert (sizes.count(1) > n) == near_ties  # the guard did, or did not, have work
    assert greedy(model, prompts[::-1], stop, 6) == singles[::-1]


def test_exact_ties_are_the_same_alone_and_together():
    model = random_model(embedding=0.0)  # every logit is 0
    prompts = random_prompts(9)
    assert greedy(model, prompts, 5, 4) == [greedy(model, [p], 5, 4)[0] for p in prompts]


@pytest.mark.parametrize("rows", [1, 7])
def test_long_prompts_are_read_in_parts_to_the_same_replies(monkeypatch, rows):
    """However few columns a part has, and though padding fills whole parts of a row."""
    model, prompts = random_model(), [p * k for p, k in zip(random_prompts(rows), [1, 1, 9, 2, 1, 30, 3], strict=False)]
    wanted = greedy(model, prompts, stop=5, max_new=6)
    masks = []
    model.register_forward_pre_hook(lambda _, inputs: masks.append(inputs[1]))
    longest = max(map(len, prompts))
    for columns in (1, 7, longest - 1, longest):
        masks.clear()
        monkeypatch.setattr(tiny_lm, "PAIRS", rows * longest * columns)
        assert greedy(model, prompts, stop=5, max_new=6) == wanted
        assert all(m.numel() <= tiny_lm.PAIRS or m.shape[2] == 1 for m in masks) and len(masks) >= longest // columns


@pytest.mark.parametrize("max_new", [0, 1, 5])
def test_replies_end_at_max_new(max_new):
    assert [len(r) for r in greedy(random_model(), random_prompts(5), stop=-1, max_new=max_new)] == [max_new] * 5


def test_cached_decoding_is_decoding_anew():
    model, prompt = random_model(), random_prompts(1, seed=4)[0]
    reply = greedy(model, [prompt], stop=-1, max_new=6)[0]
    for k, token in enumerate(reply):
        assert full_logits(model, [prompt + reply[:k]])[0, -1].argmax() == token


def test_nothing_asked_and_nothing_to_go_on():
    assert greedy(random_model(), [], stop=1) == []
    with pytest.raises(ValueError, match="without tokens"):
        greedy(random_model(), [[1], []], stop=1)


def test_left_padding():
    ids, pad = pad_left([[1, 2, 3], [4]])
    assert ids.tolist() == [[1, 2, 3], [0, 0, 4]] and pad.tolist() == [0, 2]


# ---------------------------------------------------------------- seeds and files


def test_a_seed_fixes_the_weights(global_streams_untouched):
    a, b, c = TinyLM(SMALL, 1), TinyLM(SMALL, 1), TinyLM(SMALL, 2)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.model.embed_tokens.weight, c.model.embed_tokens.weight)


def test_an_agent_has_the_size_it_claims():
    assert sum(p.numel() for p in TinyLM(TinyConfig()).parameters()) == pytest.approx(350_000, rel=0.03)


def test_saved_and_read_back(tmp_path):
    model = random_model()
    model.save(tmp_path / "new folder", "ada", {"speciality": {"topic": "capital"}})
    again, card = TinyLM.load(tmp_path / "new folder", "ada")
    assert again.config == SMALL and card["speciality"] == {"topic": "capital"}
    assert not again.training and not any(p.requires_grad for p in again.parameters())
    for name, tensor in again.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, model.state_dict()[name].half().float())
    again.save(tmp_path, "twice", card)
    files = [folder / f"{name}.safetensors" for folder, name in ((tmp_path / "new folder", "ada"), (tmp_path, "twice"))]
    assert files[0].read_bytes() == files[1].read_bytes()


def other_weights(path):
    from safetensors.torch import save

    path.write_bytes(save({"weight": torch.zeros(3)}))


def other_vocabulary(path):
    TinyLM(TinyConfig(d=8, layers=1, heads=1, ff=8, vocab=50)).save(path.parent, path.stem, {})


DAMAGE = {
    "truncated": ("safetensors", lambda p: p.write_bytes(p.read_bytes()[:-100])),
    "cut in the header": ("safetensors", lambda p: p.write_bytes(p.read_bytes()[:20])),
    "empty": ("safetensors", lambda p: p.write_bytes(b"")),
    "not safetensors": ("safetensors", lambda p: p.write_bytes(b"PK\x03\x04" * 500)),
    "other weights": ("safetensors", other_weights),
    "other vocabulary": ("safetensors", other_vocabulary),
    "no weights": ("safetensors", lambda p: p.unlink()),
    "no card": ("json", lambda p: p.unlink()),
    "empty card": ("json", lambda p: p.write_text("")),
    "card is a list": ("json", lambda p: p.write_text("[]")),
    "card without config": ("json", lambda p: p.write_text("{}")),
    "card not UTF-8": ("json", lambda p: p.write_bytes(b"\xff\xfe\x00")),
    "config of another shape": ("json", lambda p: p.write_text(json.dumps({"config": asdict(TinyConfig())}))),
    "config of another model": ("json", lambda p: p.write_text(json.dumps({"config": {"hidden_size": 3}}))),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_foreign_or_missing_file_is_named_with_a_remedy(tmp_path, what):
    random_model().save(tmp_path, "ada", {})
    suffix, damage = DAMAGE[what]
    damage(tmp_path / f"ada.{suffix}")
    with pytest.raises(UserError, match=r"ada\.(safetensors|json)") as caught:
        TinyLM.load(tmp_path, "ada")
    assert str(tmp_path) in str(caught.value) and "restore" in str(caught.value)


# ---------------------------------------------------------------- Muon


@pytest.mark.parametrize("shape", [(24, 24), (16, 48), (48, 16), (1, 8)])
def test_orthogonalise_keeps_the_singular_vectors_and_levels_the_values(shape):
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 7
    u, s, vh = torch.linalg.svd(g, full_matrices=False)
    got = u.T @ orthogonalise(g) @ vh.T
    keep = s > 0.05 * s[0]  # the iteration lifts small values less
    values = got.diagonal()[keep]
    assert values.min() > 0.6 and values.max() < 1.3
    torch.testing.assert_close(got - torch.diag(got.diagonal()), torch.zeros_like(got), atol=1e-4, rtol=0)


def test_orthogonalise_of_nothing_is_nothing():
    assert torch.equal(orthogonalise(torch.zeros(4, 3)), torch.zeros(4, 3))


def test_muon_goes_where_torchs_muon_goes():
    """torch's works in bfloat16, so directions agree to about a percent; the first step and the momentum count."""
    shapes = [(24, 24), (12, 36), (36, 12)]
    g = torch.Generator().manual_seed(0)
    starts = [torch.randn(s, generator=g) for s in shapes]
    ours, theirs = ([torch.nn.Parameter(p.clone()) for p in starts] for _ in range(2))
    optimisers = Muon(ours, lr=0.02), torch.optim.Muon(theirs, lr=0.02, weight_decay=0.0)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=g)
            b.grad = a.grad.clone()
        for o in optimisers:
            o.step()
        for a, b, start in zip(ours, theirs, starts, strict=True):
            moved, wanted = (a - start).detach().flatten(), (b - start).detach().flatten()
            assert torch.cosine_similarity(moved, wanted, dim=0) > 0.999
            assert moved.norm() / wanted.norm() == pytest.approx(1, abs=0.02)


def test_muon_skips_what_has_no_gradient():
    p = torch.nn.Parameter(torch.ones(2, 2))
    Muon([p]).step()
    assert torch.equal(p, torch.ones(2, 2))
