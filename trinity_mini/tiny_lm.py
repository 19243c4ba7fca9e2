"""The tiny language model of the embedded world: tokenizer, decoder, greedy generation, Muon.

The decoder has the shape and the parameter names of transformers' `Qwen3ForCausalLM` (RMSNorm, rotary
positions, normalised queries and keys, SwiGLU, tied embeddings), so one code path reads the hidden states
of both, and transformers itself can check ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .files import UserError, write_atomically

WORDS = (
    "ACCEPT REVISE capital symbol currency calling rev rot swp inc dec hop num "
    "<math> <code> <reason> <know> <infix> <postfix> <order> <shift> <forward> <backward> "
    "<asked> <planned> <answered> <rejected>"
).split()
CHARS = "abcdefghijklmnopqrstuvwxyz0123456789+-*/%(),:?!<>=_ .#TWVAR"
PAIRS = 2**23  # rows x queries x keys of one pass of attention while prompts are read: about 150 MB


class Tokenizer:
    """Characters plus a few whole words; id 0 is padding.

    A character the vocabulary lacks becomes `_`, so that any text can be read.
    """

    def __init__(self) -> None:
        self.tokens = ["<pad>", *CHARS, *WORDS]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        words = "|".join(re.escape(w) for w in sorted(WORDS, key=len, reverse=True))
        self._split = re.compile(f"{words}|.", re.DOTALL)

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return [self.ids.get(piece, self.ids["_"]) for piece in self._split.findall(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids (padding is left out)."""
        return "".join(self.tokens[i] for i in ids if i)


TOKENIZER = Tokenizer()


@dataclass(frozen=True)
class TinyConfig:
    """Shape of a tiny decoder; the defaults are an agent's (about 0.35 M parameters)."""

    d: int = 96
    layers: int = 3
    heads: int = 4
    ff: int = 256
    vocab: int = len(TOKENIZER)
    rope_theta: float = 10_000.0
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.d // self.heads


class RMSNorm(nn.Module):
    def __init__(self, d: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables, each (*positions.shape, head_dim), halves repeated (Su et al. 2021)."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = positions[..., None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    y = x * cos
    y[..., :half] -= x[..., half:] * sin[..., :half]
    y[..., half:] += x[..., :half] * sin[..., half:]
    return y


class Attention(nn.Module):
    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(c.d, c.d, bias=False)
        self.k_proj = nn.Linear(c.d, c.d, bias=False)
        self.v_proj = nn.Linear(c.d, c.d, bias=False)
        self.o_proj = nn.Linear(c.d, c.d, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.eps)
        self.k_norm = RMSNorm(c.head_dim, c.eps)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, past: list | None) -> Tensor:
        cos, sin = rope
        q = rotate(self.q_norm(self.heads(self.q_proj(x))), cos, sin)
        k = rotate(self.k_norm(self.heads(self.k_proj(x))), cos, sin)
        v = self.heads(self.v_proj(x))
        if past is not None:
            if past:
                k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
            past[:] = [k, v]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.d, c.ff, bias=False)
        self.up_proj = nn.Linear(c.d, c.ff, bias=False)
        self.down_proj = nn.Linear(c.ff, c.d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.d, c.eps)
        self.post_attention_layernorm = RMSNorm(c.d, c.eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, past: list | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, past)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, c: TinyConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.d)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.d, c.eps)


class TinyLM(nn.Module):
    """A decoder-only language model with tied embeddings."""

    def __init__(self, config: TinyConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = TOKENIZER
        with torch.random.fork_rng(devices=[]):  # the global stream stays as it was
            torch.manual_seed(seed)
            self.model = Decoder(config)
            for p in self.parameters():
                if p.ndim == 2:
                    nn.init.normal_(p, std=0.02 if p is self.model.embed_tokens.weight else p.shape[1] ** -0.5)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary tables for positions (B, T), shaped (B, 1, T, head_dim)."""
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        return cos.unsqueeze(1), sin.unsqueeze(1)

    def logits(self, x: Tensor) -> Tensor:
        """Next-token logits of final states x (..., d), after the final norm."""
        return self.model.norm(x) @ self.model.embed_tokens.weight.T

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor, past: list[list] | None = None) -> Tensor:
        """States before the final norm, (B, T, d).

        ids, positions: (B, T) int64; mask: (B or 1, 1, T, S) bool, True where attention is allowed;
        past: one list per layer, filled with keys and values.
        """
        rope = self.rope(positions)
        x = self.model.embed_tokens(ids)
        for i, layer in enumerate(self.model.layers):
            x = layer(x, rope, mask, None if past is None else past[i])
        return x

    def save(self, folder: Path, name: str, card: dict) -> None:
        """Write NAME.safetensors (float16) and NAME.json (config and card), each by rename."""
        from safetensors.torch import save

        tensors = {k: v.detach().to(torch.float16).contiguous() for k, v in self.state_dict().items()}
        write_atomically(Path(folder) / f"{name}.safetensors", save(tensors))
        text = json.dumps({"config": asdict(self.config), **card}, indent=1) + "\n"
        write_atomically(Path(folder) / f"{name}.json", text.encode())

    @classmethod
    def load(cls, folder: Path, name: str) -> tuple[TinyLM, dict]:
        """Read a model and its card; weights are computed with in float32, in eval mode.

        Raises: UserError if a file is missing, truncated or not ours.
        """
        from safetensors.torch import load

        path = Path(folder) / f"{name}.safetensors"
        try:
            card = json.loads((Path(folder) / f"{name}.json").read_text(encoding="utf-8"))
            model = cls(TinyConfig(**{k: type(getattr(TinyConfig, k))(v) for k, v in card["config"].items()}))
            if model.config.vocab != len(TOKENIZER):
                raise ValueError("another vocabulary")
            tensors = load(path.read_bytes())
            model.load_state_dict({k: v.float() for k, v in tensors.items()})
        except FileNotFoundError as e:
            raise UserError(f"{e.filename} is missing: restore data/ from the repository.") from None
        except Exception as e:
            raise UserError(
                f"{path} or its card is damaged or not a tiny model ({type(e).__name__}): "
                "restore it from the repository or train it again."
            ) from None
        return model.eval().requires_grad_(False), card


def pad_left(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids (B, T) padded on the left with 0, and the number of padding tokens of each row (B,)."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row)
    return ids, torch.tensor([width - len(row) for row in rows])


@torch.inference_mode()
def greedy(
    model: TinyLM, prompts: Sequence[Sequence[int]], stop: int, max_new: int = 32, margin: float = 1e-3
) -> list[list[int]]:
    """Greedy continuation of each prompt, without the stop token.

    A reply never depends on its companions: batched sums differ from single ones in the last bits, so a row
    whose best two logits come closer than `margin` leaves the batch and is decoded alone.

    Prompts are read in parts of so many columns that memory grows with their length, not with its square.

    Returns: one list of ids per prompt, each shorter than or as long as `max_new`.
    Raises: ValueError for a prompt without tokens.
    """
    if not prompts:
        return []
    if not all(map(len, prompts)):
        raise ValueError("a prompt without tokens has no continuation.")
    replies: list[list[int]] = [[] for _ in prompts]
    alone: list[int] = []
    rows = torch.arange(len(prompts))
    ids, pad = pad_left(prompts)
    columns = torch.arange(ids.shape[1])
    seen = columns >= pad[:, None]  # (B, T): no attention to padding
    positions = (columns - pad[:, None]).clamp(min=0)
    past: list[list] = [[] for _ in model.model.layers]
    x, token = _read(model, ids, positions, seen, past), ids[:, -1]
    for new in range(max_new):
        if new:
            x = model(token[:, None], seen[:, None, None], positions, past)[:, -1]
        top = model.logits(x).topk(2)
        token = top.indices[:, 0]
        close = top.values[:, 0] - top.values[:, 1] < margin if len(prompts) > 1 else torch.zeros(len(rows), dtype=bool)
        going = (token != stop) & ~close
        for row, t, c, g in zip(rows.tolist(), token.tolist(), close.tolist(), going.tolist(), strict=True):
            if g:
                replies[row].append(t)
            elif c:
                alone.append(row)
        if not going.any():
            break
        positions = positions[:, -1:] + 1
        seen = torch.cat((seen, torch.ones(len(rows), 1, dtype=torch.bool)), dim=1)
        if not going.all():  # finished rows make room
            rows, token, positions, seen = rows[going], token[going], positions[going], seen[going]
            past = [[k[going], v[going]] for k, v in past]
    for row in alone:
        replies[row] = greedy(model, [prompts[row]], stop, max_new)[0]
    return replies


def _read(model: TinyLM, ids: Tensor, positions: Tensor, seen: Tensor, past: list[list]) -> Tensor:
    """State of the last token (B, d) of prompts (B, T), left-padded where not `seen`; fills `past`."""
    rows, width = ids.shape
    columns = torch.arange(width)
    step = max(1, PAIRS // (rows * width))  # the whole, unless prompts are very long
    for start in range(0, width, step):
        part, keys = columns[start : start + step], columns[: start + step]
        causal = part[:, None] >= keys
        mask = causal & seen[:, None, None, : len(keys)] | (part[:, None] == keys)  # padding sees itself: no NaN
        x = model(ids[:, part], mask, positions[:, part], past)[:, -1]
    return x


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz (Jordan et al. 2024), in float32; for 2-D weights."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update; gradients that are None are skipped."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(m, group["momentum"]))
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """Near-orthogonal matrix with g's singular vectors, by a quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if g.shape[0] > g.shape[1] else x
