"""The backbone at full scale, as far as a CPU can tell: bfloat16, memory that runs out, long texts, budgets,
another device, and the shape of Qwen3-0.6B. Oracles: transformers' own forward, and numpy's SVD in float64.
"""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_backbone import TEXTS, backbone, chat_tokenizer, model, moved, oracle, tiny
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformers import Qwen3ForCausalLM

from trinity_mini import prefix_tree, theta_batch
from trinity_mini.backbone import Backbone
from trinity_mini.bench_states import qwen3_config
from trinity_mini.coordinator import Coordinator
from trinity_mini.files import ROOT, UserError
from trinity_mini.theta_batch import LONGEST, default_budget
from trinity_mini.tiny_lm import TOKENIZER

LETTERS = list("abcdefghij0123456789+*")


def random_texts(n, low, high, seed=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(LETTERS, rng.integers(low, high))) for _ in range(n)]


# ---- bfloat16 ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rough_and_exact(tmp_path_factory):
    """The same weights, those that bfloat16 can hold, computed with in both types."""
    folder = tmp_path_factory.mktemp("qwen3")
    model("qwen3").save_pretrained(folder)
    chat_tokenizer().save_pretrained(folder)
    rough = Backbone.from_hub(folder, dtype=torch.bfloat16)
    exact = Backbone(Backbone.from_hub(folder, dtype=torch.bfloat16).model.float(), chat_tokenizer())
    return rough, exact


def test_in_bfloat16_what_decides_is_float32(rough_and_exact):
    rough, _ = rough_and_exact
    assert {p.dtype for p in rough.model.parameters()} == {torch.bfloat16}
    read = []
    with rough.model.model.norm.register_forward_hook(lambda m, x, y: read.append((x[0].dtype, y.dtype))):
        coordinator = Coordinator(rough, 7)
        theta = np.random.default_rng(0).normal(0, 0.1, (len(TEXTS), coordinator.n))
        rough._batch.break_even = 0  # W' of every candidate is built
        agent, role = coordinator.logits(TEXTS, theta)
    assert read and set(read) == {(torch.float32, torch.float32)}
    factors = [t for f in rough.svf().factors.values() for t in f]
    built = [w for d in rough._batch.dense.values() for w in d.values()]
    assert built and {t.dtype for t in [*factors, *built, agent, role]} == {torch.float32}


@pytest.mark.parametrize("break_even", [0, float("inf")])
def test_bfloat16_decides_as_float32_does(rough_and_exact, break_even):
    rough, exact = rough_and_exact
    texts, thetas, states, logits = random_texts(400, 5, 60), [], [], []
    for b in (rough, exact):
        b.clear_cache()
        b._batch.break_even = break_even
        c = Coordinator(b, 7)
        thetas = np.random.default_rng(1).normal(0, 1, (40, c.n))[np.arange(400) % 40]
        thetas[:, : c.n_svf] *= 0.05
        states.append(b.hidden(texts, c.split(thetas)[0]))
        logits.append([z.numpy() for z in c.logits(texts, thetas)])
    size = states[1].pow(2).mean().sqrt()
    error = (states[0] - states[1]).pow(2).mean().sqrt() / size
    assert 1e-4 < error < 0.02  # measured 0.010; one rounding to bfloat16 is 0.002
    for a, b in zip(*logits, strict=True):
        off = np.abs(a - b).max(axis=1)
        assert np.median(off) < 0.03
        agree = a.argmax(axis=1) == b.argmax(axis=1)
        top = np.sort(b, axis=1)
        assert agree.mean() > 0.97
        assert (agree | (top[:, -1] - top[:, -2] < 2 * off)).all()  # where they differ, it was close


def test_how_far_a_state_depends_on_its_companions(rough_and_exact):
    texts = random_texts(30, 5, 60, seed=2)
    for b, bound in zip(rough_and_exact, (0.03, 1e-5), strict=True):
        deltas = moved(b, 6, scale=0.05)[np.arange(30) % 6]
        alone = []
        for text, delta in zip(texts, deltas, strict=True):
            b.clear_cache()
            alone.append(b.hidden([text], delta))
        b.clear_cache()
        alone = torch.cat(alone)
        off = (b.hidden(texts, deltas) - alone).pow(2).mean(dim=1).sqrt() / alone.pow(2).mean().sqrt()
        assert off.max() < bound


# ---- memory that runs out ------------------------------------------------------------------------


def runs_out(monkeypatch, module, tokens, error):
    """Patch a linear layer to fail for more tokens than that; returns the sizes it was asked for."""
    asked, plain = [], module.forward

    def forward(x):
        asked.append(len(x))
        if len(x) > tokens:
            raise error
        return plain(x)

    monkeypatch.setattr(module, "forward", forward)
    return asked


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    MemoryError(),
]


@pytest.mark.parametrize("layer", [0, 3])  # below the adapted layer, above it
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_out_of_memory_halves_the_batch_and_goes_on(monkeypatch, layer, error):
    texts, b = random_texts(40, 10, 30), backbone("qwen3")
    deltas = moved(b, 5)[np.arange(40) % 5]
    wanted = backbone("qwen3").hidden(texts, deltas)
    b.hidden(texts[:3], deltas[:3])  # something is cached when it happens
    name = "gate_proj" if layer == 0 else "k_proj"  # the last layer's keys are of all tokens
    part = b.model.model.layers[layer].mlp if layer == 0 else b.model.model.layers[layer].self_attn
    asked = runs_out(monkeypatch, getattr(part, name), 100, error)
    torch.testing.assert_close(b.hidden(texts, deltas), wanted, atol=1e-5, rtol=0)
    refused = [n for n in asked if n > 100]
    assert 1 <= len(refused) <= 5 and max(refused) > 400
    asked.clear()
    b.clear_cache()
    torch.testing.assert_close(b.hidden(texts, deltas), wanted, atol=1e-5, rtol=0)
    assert asked and max(asked) <= 100  # it remembers


def test_out_of_memory_after_some_chunks_keeps_what_stands(monkeypatch):
    texts, b = random_texts(40, 10, 30), backbone("qwen3")
    deltas = moved(b, 5)[np.arange(40) % 5]
    wanted = backbone("qwen3").hidden(texts, deltas)
    b._batch.chunk, budget = 200, b._batch.budget
    gate = b.model.model.layers[0].mlp.gate_proj
    plain, asked = gate.forward, []

    def forward(x):
        asked.append(len(x))
        if len(asked) == 3:
            raise ERRORS[0]
        return plain(x)

    monkeypatch.setattr(gate, "forward", forward)
    torch.testing.assert_close(b.hidden(texts, deltas), wanted, atol=1e-5, rtol=0)
    assert max(asked[:3]) <= 200 and max(asked[3:]) <= 100
    tokens = sum(map(len, texts)) - 40  # the last of a text is not needed, and a few beginnings are shared
    assert 0.9 * tokens < sum(asked[:2] + asked[3:]) <= tokens  # none is computed twice
    assert b._batch.budget == budget  # little was cached: it was not the cache's fault


def test_out_of_memory_at_one_text_names_the_remedy(monkeypatch):
    b, texts = backbone("tiny"), random_texts(9, 20, 30)
    wanted = backbone("tiny").hidden(texts)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="max_tokens.*smaller budget"):
        runs_out(patch, b.model.model.layers[1].mlp.gate_proj, 10, ERRORS[0])
        b.hidden(texts)
    assert b._batch.spent() == b.held() == 0
    torch.testing.assert_close(b.hidden(texts), wanted, atol=1e-5, rtol=0)


def test_other_errors_are_not_taken_for_it(monkeypatch):
    b = backbone("tiny")
    runs_out(monkeypatch, b.model.model.layers[1].mlp.gate_proj, 10, RuntimeError("CUDA error: invalid argument"))
    with pytest.raises(RuntimeError, match="invalid argument"):
        b.hidden(["abcdefghijklmno"])


def test_out_of_memory_while_weights_are_built(monkeypatch):
    b = backbone("tiny")
    deltas, texts = moved(b, 4), random_texts(4, 20, 30)
    wanted = backbone("tiny").hidden(texts, deltas)
    b._batch.break_even = 0

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(b.svf(), "product", full)
    torch.testing.assert_close(b.hidden(texts, deltas), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("where", ["singular_values", "stack"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_out_of_memory_for_the_singular_values(monkeypatch, where, error):
    """Before the first pass: what is cached is given back and it goes on; where nothing is, it is said."""
    b, texts = backbone("tiny"), random_texts(4, 20, 30)
    deltas = moved(b, 4)
    wanted = backbone("tiny").hidden(texts, deltas)
    b.hidden(texts, deltas)
    owner = b.svf() if where == "singular_values" else np
    plain, held = getattr(owner, where), []

    def full(*args):
        held.append(b.held())
        if held[-1] or always:
            raise error
        return plain(*args)

    monkeypatch.setattr(owner, where, full)
    always = False
    torch.testing.assert_close(b.hidden(texts, deltas), wanted, atol=1e-5, rtol=0)
    assert len(held) == 2 and held[0] > held[1] == 0
    always = True
    with pytest.raises(UserError, match="singular values of 5 candidates: take a smaller population"):
        b.hidden(texts, deltas)
    b.clear_cache()
    with pytest.raises(UserError, match="singular values"):
        b.hidden(texts, deltas)
    error = RuntimeError("CUDA error: invalid argument")
    with pytest.raises(RuntimeError, match="invalid argument"):
        b.hidden(texts, deltas)


LIMITED = """
import resource, sys
import numpy as np, torch
torch.set_num_threads(1)
from trinity_mini.backbone import Backbone
from trinity_mini.tiny_lm import TOKENIZER, TinyConfig, TinyLM

def made():
    return Backbone(TinyLM(TinyConfig(d=64, layers=2, heads=2, ff=2048), seed=2).eval(), TOKENIZER)

rng = np.random.default_rng(0)
texts = ["".join(rng.choice(list("abcdefghij"), 400)) for _ in range(40)]  # one chunk of 16,000 tokens: 125 MiB a gate
wanted = made().hidden(texts[:4] + texts[-4:])
b = made()
b.hidden(texts[:1])
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 150 * 2**20,) * 2)
states = b.hidden(texts)
print(b._batch.chunk, float((torch.cat((states[:4], states[-4:])) - wanted).abs().max()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits its own address space, and reads it in /proc")
def test_a_process_that_truly_runs_out_of_memory():
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    chunk, off = done.stdout.split()
    assert int(chunk) < theta_batch.CHUNK and float(off) < 1e-5


# ---- budgets -------------------------------------------------------------------------------------


def measured(batch):
    """Bytes of the memory behind all cached states and rebuilt weights."""
    kept = [t for tree in batch.trees for t in (*tree.keys, *tree.values, tree.x)]
    weights = [w for matrices in batch.dense.values() for w in matrices.values()]
    return sum(t.untyped_storage().nbytes() for t in [*kept, *weights])


@pytest.mark.parametrize("budget", [150_000, 400_000, 3_000_000])
def test_cached_states_stay_within_their_budget(monkeypatch, budget):
    roomy, tight = backbone("qwen3"), backbone("qwen3", budget=budget)
    tight._batch.break_even = roomy._batch.break_even = 100  # rebuilt weights take their part
    seen = []
    for layer in tight.model.model.layers:
        plain = layer.mlp.down_proj.forward

        def forward(x, plain=plain):
            seen.append(measured(tight._batch))
            return plain(x)

        monkeypatch.setattr(layer.mlp.down_proj, "forward", forward)
    for turn in range(9):
        matrices = ("paper", "released")[turn // 2 % 2]
        texts = random_texts(40, 5, 40, seed=turn // 3)
        texts = [t + "again" * (turn % 3) for t in texts]
        deltas = moved(roomy, 10, matrices, seed=turn // 4)[np.arange(40) % 10]
        states = tight.hidden(texts, deltas, matrices)
        torch.testing.assert_close(states, roomy.hidden(texts, deltas, matrices), atol=1e-4, rtol=0)
        assert measured(tight._batch) <= tight.held()
    assert budget / 4 < max(seen) <= budget < measured(roomy._batch)


def test_a_text_beyond_the_budget_names_the_remedy():
    b = backbone("qwen3", budget=100_000)
    with pytest.raises(UserError, match="larger budget.*max_tokens"):
        b.hidden(["ab" * 100])
    assert torch.isfinite(b.hidden(["abcdef"])).all()


def test_the_default_budget(monkeypatch):
    assert Backbone(tiny(), TOKENIZER)._batch.budget == 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * 2**30, 80 * 2**30))
    assert default_budget(torch.device("cuda", 0), 10**9) == 30 * 2**30
    b = Backbone(qwen3_06b(), None)
    text = LONGEST * (b._batch.lower.node_bytes + b._batch.tail.node_bytes)
    assert 4 / 3 * text <= b._batch.budget < 2 * text  # a quarter may hold rebuilt weights
    assert text == 8192 * 4 * (28 * 2 * 8 * 128 + 2 * 1024)


# ---- long texts ----------------------------------------------------------------------------------


def attention_sizes(monkeypatch):
    sizes, plain = [], F.scaled_dot_product_attention

    def attention(q, k, v, **options):
        sizes.append(q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2])
        assert options["attn_mask"].numel() <= q.shape[0] * q.shape[2] * k.shape[2]
        return plain(q, k, v, **options)

    monkeypatch.setattr(prefix_tree, "F", SimpleNamespace(scaled_dot_product_attention=attention))
    return sizes


@pytest.mark.parametrize("scores", [64, 1000, 20_000])
@pytest.mark.parametrize("kind", ["tiny", "qwen3"])
def test_attention_in_pieces_is_attention(monkeypatch, kind, scores):
    texts = [t + more for more in ("", "abc" * 7) for t in random_texts(12, 3, 60)]
    b, whole = backbone(kind), backbone(kind)
    deltas = moved(b, 3)[np.arange(24) % 3]
    wanted = whole.hidden(texts, deltas)
    sizes = attention_sizes(monkeypatch)
    monkeypatch.setattr(prefix_tree, "SCORES", scores)
    for part in (slice(0, 12), slice(0, 24)):  # whole texts, then what they grew by
        torch.testing.assert_close(b.hidden(texts[part], deltas[part]), wanted[part], atol=1e-5, rtol=0)
    assert max(sizes) <= max(scores, 4 * 81)  # a query of four heads over the longest text, at least


def test_a_text_of_8192_tokens(monkeypatch):
    sizes = attention_sizes(monkeypatch)
    b = backbone("qwen3")
    rng = np.random.default_rng(0)
    text = "".join(rng.choice(LETTERS, LONGEST))
    state, again = b.hidden([text[:-500], text])
    torch.testing.assert_close(again, oracle(b.model, b.encode(text)), atol=1e-4, rtol=0)
    assert max(sizes) <= prefix_tree.SCORES < 4 * LONGEST**2
    assert (state - again).abs().max() > 0.1


def test_more_tokens_than_the_model_reads():
    b = backbone("qwen3")
    assert b.longest == 32_768
    b.longest = 20
    with pytest.raises(UserError, match="input 1 has 21 tokens .* at most 20: .*max_tokens"):
        b.hidden(["a" * 20, "a" * 21])


# ---- another device ------------------------------------------------------------------------------


def test_a_device_that_is_not_there(tmp_path):
    model("qwen3").save_pretrained(tmp_path)
    chat_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot use device"):
        Backbone.from_hub(tmp_path, device="cuda:99")


class Far(torch.Tensor):
    """A tensor on a device of its own: it calls itself `meta`, has its numbers, and meets no CPU tensor."""

    @staticmethod
    def __new__(cls, near):
        kept = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, near.shape, device="meta", **kept)
        made.near = near
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return far_away(func, args, kwargs or {})


def far_away(func, args, kwargs):
    """Compute on the CPU what a device would, and refuse what a device refuses."""
    name, to = func._overloadpacket.__name__, kwargs.get("device")
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    far = any(isinstance(t, Far) for t in tensors)
    if far and name not in ("_to_copy", "copy_", "index", "index_put_"):  # these take both
        assert all(isinstance(t, Far) or t.ndim == 0 for t in tensors), f"{func} mixes devices"
    a, k = tree_map(lambda t: t.near if isinstance(t, Far) else t, (args, kwargs))
    out = func(*a, **(k if to is None else {**k, "device": "cpu"}))
    if name == "_local_scalar_dense":
        return out
    if "out" in kwargs or (name.endswith("_") and isinstance(args[0], torch.Tensor)):
        return kwargs.get("out", args[0])
    goes = far if to is None else torch.device(to).type == "meta"
    return tree_map(lambda t: Far(t) if goes and isinstance(t, torch.Tensor) else t, out)


class Anywhere(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return far_away(func, args, kwargs or {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_another_device_nothing_stays_behind(monkeypatch, dtype):
    monkeypatch.setattr(prefix_tree, "SCORES", 3000)
    here, away = Backbone(model("qwen3").to(dtype), chat_tokenizer()), model("qwen3").to(dtype)
    for module in away.modules():
        for kept in (module._parameters, module._buffers):
            for name, t in kept.items():
                if t is not None:
                    kept[name] = torch.nn.Parameter(Far(t.detach()), False) if kept is module._parameters else Far(t)
    away.lm_head.weight = away.model.embed_tokens.weight
    with Anywhere():
        there = Backbone(away, chat_tokenizer())
    for matrices in ("paper", "released"):
        for break_even in (float("inf"), 0):
            near, far = (Coordinator(b, 3, matrices=matrices) for b in (here, there))
            theta = np.random.default_rng(0).normal(0, 0.1, (len(TEXTS), near.n))
            theta[2, : near.n_svf] = 0
            here._batch.break_even = there._batch.break_even = break_even
            wanted = near.logits(TEXTS, theta)
            with Anywhere():
                for _ in range(2):
                    for a, b in zip(far.logits(TEXTS, theta), wanted, strict=True):
                        torch.testing.assert_close(a, b, atol=1e-5 if dtype == torch.float32 else 0.01, rtol=0)
                assert isinstance(there.hidden(TEXTS), Far)
                there.clear_cache()


# ---- the shape of Qwen3-0.6B ---------------------------------------------------------------------


def qwen3_06b():
    with torch.device("meta"):
        return Qwen3ForCausalLM(qwen3_config())


def test_qwen3_06b_counts_as_in_the_paper():
    b = Backbone(qwen3_06b(), None)
    assert all(p.is_meta for p in b.model.parameters())
    assert sum(p.numel() for p in b.model.parameters()) == 596_049_920  # as its card says: 0.6 B, 0.44 B without tying
    assert (b.d, b.n_layers, b.layer) == (1024, 28, 26)
    counted = {m: Coordinator(b, 7, matrices=m) for m in ("none", "paper", "released")}
    assert {m: (c.n_svf, c.n) for m, c in counted.items()} == {
        "none": (0, 10_240), "paper": (7_168, 17_408), "released": (9_216, 19_456),
    }  # fmt: skip
    svf = b.svf("released")
    assert all(part.stop - part.start == 1024 for part in svf.slices.values())
    inside = [name for name in svf.slices if name.startswith("model.layers.26.")]
    assert len(inside) == 7 and svf.inert == {"lm_head.weight"}


def replaced(weight, delta):
    """W' by numpy in float64."""
    u, s, vt = np.linalg.svd(weight.double().numpy(), full_matrices=False)
    moved = s * (1 + delta.astype(float))
    return torch.from_numpy((u * (moved * s.sum() / moved.sum())) @ vt).float()


def test_full_width_layers_against_transformers():
    torch.manual_seed(5)
    config = qwen3_config(num_hidden_layers=2, vocab_size=1000, initializer_range=1 / 32)
    b = Backbone(Qwen3ForCausalLM(config), chat_tokenizer())
    texts, svf, found = [*TEXTS, *random_texts(2, 60, 90)], b.svf(), []
    assert b.layer == 0 and svf.n == 7168
    wanted = torch.stack([oracle(b.model, b.encode(t)) for t in texts])
    torch.testing.assert_close(b.hidden(texts), wanted, atol=1e-4, rtol=0)
    torch.testing.assert_close(b.hidden(texts, np.zeros(svf.n)), wanted, atol=1e-4, rtol=0)
    # Two of the matrices, since an SVD takes long; small steps, since an SVD in float32 is only so exact.
    delta = np.zeros(svf.n, dtype=np.float32)
    for name in ("self_attn.k", "mlp.down"):
        part = svf.slices[f"model.layers.0.{name}_proj.weight"]
        delta[part] = np.random.default_rng(part.start).normal(0, 0.01, part.stop - part.start)
    for break_even in (float("inf"), 0):
        b._batch.break_even = break_even
        found.append(b.hidden(texts, np.stack([delta, 0 * delta])[np.arange(len(texts)) % 2]))
    with torch.no_grad():
        for name, part in svf.slices.items():
            if delta[part].any():
                b.model.get_parameter(name).copy_(replaced(svf.saved[name], delta[part]))
    after = wanted.clone()
    after[::2] = torch.stack([oracle(b.model, b.encode(t)) for t in texts[::2]])
    assert (after - wanted)[::2].abs().max() > 0.02  # 200 times the tolerance
    for states in found:
        torch.testing.assert_close(states, after, atol=1e-4, rtol=0)
