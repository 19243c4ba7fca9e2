"""The coordinator's small language model: texts in, one hidden state each out.

Two facts make a whole population of SVF candidates cheap. Attention is causal, so the states of a
prefix serve every text that begins with it: a tree of prefixes keeps them, and a transcript that
grew by one turn costs its new tokens only. And candidates differ only in the singular values of
one layer: the layers below run once for all, and W' x = U (s * (V^T x)) with each row's own s.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .files import DATA, UserError
from .prefix_tree import Candidates, PrefixTree, Step, buckets, plain, run_layer
from .svf import SVF
from .tiny_lm import TinyLM, rotary

Prompt = str | list[dict]  # a rendered text, or the messages of a chat
MATRIX_SETS = ("paper", "released")
EMBEDDINGS = "model.embed_tokens.weight"
CHUNK = 16_384  # tokens computed at a time


def digest(*parts: str | bytes) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the parts."""
    h = hashlib.sha256()
    for part in parts:
        h.update(part.encode() if isinstance(part, str) else part)
    return h.hexdigest()[:16]


class Backbone:
    """Reads the state of the penultimate token of a prompt, after the final norm.

    model: TinyLM, or any causal language model of transformers. Llama, Qwen2 and Qwen3 take the
    fast path; of other architectures only plain states can be read, without deltas.
    layer: the adapted layer; the paper's is the second to last.
    budget: bytes of cached states after which the cache starts afresh.
    """

    def __init__(
        self, model: nn.Module, tokenizer, layer: int | None = None, budget: int = 512 * 2**20
    ) -> None:
        self.model, self.tokenizer, self.budget = model.eval().requires_grad_(False), tokenizer, budget
        self.tiny = isinstance(model, TinyLM)
        self.d = model.config.d if self.tiny else model.config.hidden_size
        self.fast = self.tiny or _decoder_shaped(model.config)
        self._svf: dict[str, SVF] = {}
        if self.fast:
            self.n_layers = len(model.model.layers)
            self.layer = self.n_layers - 2 if layer is None else layer
            if not 0 <= self.layer < self.n_layers:
                raise ValueError(f"layer {layer} is not one of 0 to {self.n_layers - 1}.")
            self.clear_cache()

    @classmethod
    def embedded(cls, folder: Path = DATA / "tiny_pool") -> Backbone:
        """The shipped SLM. Raises: UserError if its files are missing or damaged."""
        model, _ = TinyLM.load(folder, "slm")
        return cls(model, model.tokenizer)

    @classmethod
    def from_hub(
        cls,
        name: str | Path,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        layer: int | None = None,
    ) -> Backbone:
        """A chat model from the Hugging Face hub or a local folder, such as Qwen/Qwen3-0.6B.

        Raises: UserError if it can be neither found nor read.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
            model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
        except (OSError, ValueError, KeyError) as e:
            reason = (str(e).strip() or type(e).__name__).splitlines()[0]
            raise UserError(
                f"cannot load {name} ({reason}): check the name, or download it where there is a "
                f"network (`hf download {name}`) and give the folder; HF_HUB_OFFLINE must be unset."
            ) from None
        return cls(model.to(device), tokenizer, layer)

    # ---- prompts -------------------------------------------------------------------------------

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: a text as it stands, messages through the chat template."""
        if isinstance(prompt, str):
            if self.tiny:
                return self.tokenizer.encode(prompt)
            return self.tokenizer(prompt, add_special_tokens=False).input_ids if prompt else []
        if self.tiny:
            raise ValueError("the embedded model reads rendered texts, not lists of messages.")
        if not prompt:
            return []
        text = self.tokenizer.apply_chat_template(
            prompt, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return self.tokenizer(text, add_special_tokens=False).input_ids

    @cached_property
    def format(self) -> dict:
        """What decides how a prompt becomes ids, and which of them is read.

        `enable_thinking=False` adds an empty think block: with it on, position -2 is another token.
        """
        if self.tiny:
            vocabulary = json.dumps(self.tokenizer.tokens)
            return {"kind": "text", "tokenizer": digest(vocabulary), "position": -2}
        rules = getattr(self.tokenizer, "backend_tokenizer", None)
        rules = rules.to_str() if rules else json.dumps(self.tokenizer.get_vocab(), sort_keys=True)
        return {
            "kind": "chat",
            "template": digest(self.tokenizer.chat_template or ""),
            "thinking": False,
            "tokenizer": digest(rules),
            "position": -2,
        }

    @cached_property
    def weights_hash(self) -> str:
        """Content hash of all weights, in their own type."""
        parts = []
        for name, w in sorted(self.model.state_dict().items()):
            parts += [name, w.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data]
        return digest(*parts)

    # ---- SVF -----------------------------------------------------------------------------------

    def svf(self, matrices: str = "paper") -> SVF:
        """Coordinates of a matrix set, factored once.

        `paper`: q, k, v, o, gate, up, down of the adapted layer; `released`: those, then the
        embeddings and the head (inert where it is tied to them, and never seen by the state).
        Qwen3-0.6B: 7,168 and 9,216. Source: paper-facts section 1.

        Raises: UserError for another set or an architecture whose layers cannot be adapted.
        """
        if matrices not in MATRIX_SETS:
            raise UserError(f"no matrix set {matrices!r}: choose one of {', '.join(MATRIX_SETS)}.")
        if not self.fast:
            raise UserError(
                f"{type(self.model).__name__} cannot be adapted: use a Llama, Qwen2 or Qwen3 model "
                'with full attention, or train the head only (matrices="none").'
            )
        if matrices not in self._svf:
            weights = {f"{name}.weight": m.weight for name, m in self._adapted_linears().items()}
            if matrices == "released":
                weights[EMBEDDINGS] = self.model.model.embed_tokens.weight
                head = self.model.model.embed_tokens if self.tiny else self.model.lm_head
                weights["lm_head.weight"] = head.weight
            self._svf[matrices] = SVF(weights)
        return self._svf[matrices]

    def _adapted_linears(self) -> dict[str, nn.Linear]:
        layer = self.model.model.layers[self.layer]
        attention = {f"self_attn.{x}_proj": getattr(layer.self_attn, f"{x}_proj") for x in "qkvo"}
        mlp = {f"mlp.{x}_proj": getattr(layer.mlp, f"{x}_proj") for x in ("gate", "up", "down")}
        return {f"model.layers.{self.layer}.{n}": m for n, m in (attention | mlp).items()}

    # ---- states --------------------------------------------------------------------------------

    def clear_cache(self) -> None:
        """Forget all states. Also done when the budget is spent or a weight was written to."""
        model = self.model.model
        attention, like = model.layers[0].self_attn, model.embed_tokens.weight
        kv = attention.k_proj.out_features // attention.head_dim, attention.head_dim

        def tree(layers: int) -> PrefixTree:
            return PrefixTree(layers, self.d, kv, like)

        # Candidates that move the embeddings share nothing, not even the lowest layer.
        self._lower = tree(self.layer)
        self._tails = {"paper": tree(self.n_layers - self.layer), "released": tree(self.n_layers)}
        self._roots: dict[tuple, int] = {}  # candidate -> its root in the tail's tree
        self._tokens: dict[int, int] = {}  # root -> tokens read so far
        self._dense: dict[int, dict[int, Tensor]] = {}  # root -> rebuilt weights
        self._versions = self._weight_versions()

    def _weight_versions(self) -> int:
        return sum(p._version for p in self.model.parameters())

    def _spent(self) -> int:
        """Bytes of cached states and rebuilt weights."""
        trees = [self._lower, *self._tails.values()]
        dense = sum(w.nbytes for weights in self._dense.values() for w in weights.values())
        return sum(t.size * t.node_bytes for t in trees) + dense

    @torch.no_grad()
    def hidden(
        self,
        inputs: Sequence[Prompt],
        deltas: Tensor | np.ndarray | None = None,
        matrices: str = "paper",
    ) -> Tensor:
        """State of the penultimate token of each prompt, after the final norm.

        Position -2 is counted on the unpadded tokens, so a batch equals its members one by one.
        deltas: (B, n) or (n,) SVF coordinates of the matrix set, a row each; None or zeros read
        the plain weights. Float32 whatever the weights' type; no gradient.

        Returns: (B, d).
        Raises: ValueError if a prompt has fewer than two tokens or a delta is not valid;
        UserError if deltas are given for an architecture whose layers cannot be adapted.
        Source: paper-facts section 1 (h(s) of the paper, position -2 in the released run).
        """
        ids = [self.encode(prompt) for prompt in inputs]
        for i, row in enumerate(ids):
            if len(row) < 2:
                raise ValueError(
                    f"input {i} has {len(row)} token(s): the penultimate one needs at least two."
                )
        svf = None if deltas is None else self.svf(matrices)
        if not self.fast:
            return self._padded(ids)
        if self._versions != self._weight_versions():
            self.clear_cache()
        # Attention is causal: the last token cannot reach the state of the one before it.
        texts = [tuple(row[:-1]) for row in ids]
        if svf is None:
            matrices, keys, owner, values = "paper", [None], np.zeros(len(texts), int), {}
        else:
            keys, owner, values = _distinct(svf, deltas, len(texts))
        out = torch.empty(len(texts), self.d, device=self.model.model.embed_tokens.weight.device)
        tail = self._tails[matrices]
        limit = min(CHUNK, self.budget // 2 // (self._lower.node_bytes + tail.node_bytes))
        for rows in _chunks(np.argsort(owner, kind="stable"), [len(t) for t in texts], limit):
            if self._spent() > self.budget:
                self.clear_cache()
            order, candidates = self._candidates(matrices, svf, keys, owner, values, rows, texts)
            out[order] = self._tail(matrices, candidates, order, owner, texts)
        return out

    def _candidates(self, matrices, svf, keys, owner, values, rows, texts):
        """The chunk's candidates and its rows in their order, those with rebuilt weights last."""
        present, tokens = np.unique(owner[rows], return_inverse=True)
        tokens = np.bincount(tokens, weights=[len(texts[i]) for i in rows])
        modules = {id(m): f"{name}.weight" for name, m in self._adapted_linears().items()}
        dense = {}
        for c, new in zip(present.tolist(), tokens, strict=True):
            if keys[c] is None:
                dense[c] = {id(m): m.weight for m in self._adapted_linears().values()}
                continue
            root = self._root(matrices, keys[c])
            self._tokens[root] = self._tokens.get(root, 0) + int(new)
            if root not in self._dense and self._tokens[root] >= self._break_even:
                like = self.model.model.embed_tokens.weight
                self._dense[root] = {
                    m: svf.product(name, values[name][c]).to(like) for m, name in modules.items()
                }
            if root in self._dense:
                dense[c] = self._dense[root]
        listed = [c for c in present.tolist() if c not in dense] + list(dense)
        rank = np.zeros(len(keys), int)
        rank[listed] = np.arange(len(listed))
        order = rows[np.argsort(rank[owner[rows]], kind="stable")]
        chosen = {name: v[listed] for name, v in values.items()}
        return order, (listed, [self._root(matrices, keys[c]) for c in listed], Candidates(
            svf, modules, chosen, list(dense.values())))
