"""The coordinator's small language model: texts in, one hidden state each out.

Two facts make a whole population of SVF candidates cheap. Attention is causal, so the states of a
prefix serve every text that begins with it: a tree of prefixes keeps them, and a transcript that
grew by one turn costs its new tokens only. And candidates differ only in the singular values of
one layer: the layers below run once for all, and W' x = U (s * (V^T x)) with each row's own s.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from .files import DATA, UserError
from .hub import need_hub
from .roles import indented
from .svf import SVF
from .templates import router_text
from .theta_batch import EMBEDDINGS, ThetaBatch
from .tiny_lm import TinyLM, rotary

if TYPE_CHECKING:
    from .episode import Transcript

Prompt = str | list[dict]  # a rendered text, or the messages of a chat
MATRIX_SETS = ("paper", "released")


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
    budget: bytes that cached states take at most; None: see ThetaBatch.

    Weights may be bfloat16: the adapted layer's singular factors, the final norm, states and head are float32
    all the same. A state then depends on its companions in the batch by about 1e-2 of its size (float32: 1e-6).
    """

    def __init__(self, model: nn.Module, tokenizer, layer: int | None = None, budget: int | None = None) -> None:
        self.model, self.tokenizer = model.eval().requires_grad_(False), tokenizer
        self.tiny = isinstance(model, TinyLM)
        self.d = model.config.d if self.tiny else model.config.hidden_size
        self.fast = self.tiny or _decoder_shaped(model.config)
        self.longest = None if self.tiny else getattr(model.config, "max_position_embeddings", None)
        self._svf: dict[str, SVF] = {}
        self._hash = -1, ""
        if self.fast:
            self.n_layers = len(model.model.layers)
            self.layer = self.n_layers - 2 if layer is None else layer
            if not 0 <= self.layer < self.n_layers:
                raise ValueError(f"layer {layer} is not one of 0 to {self.n_layers - 1}.")
            self._rope_table = torch.empty(0), torch.empty(0)
            adapted = {f"{name}.weight": m for name, m in self._adapted_linears().items()}
            self._batch = ThetaBatch(model.model, self.layer, adapted, self._rope, budget)
        self.centre = np.zeros(self.d, dtype=np.float32)
        self.scale = 1.0
        self.clear_cache()

    def measure(self, prompts: Sequence[Prompt]) -> None:
        """Set centre (d,) and scale of the states from typical prompts: what `features` takes out.

        The mean state says nothing about a question, but a random head turns it into the same large preference
        for everything.
        """
        h = self.hidden(prompts).cpu().numpy()
        self.centre = h.mean(axis=0)
        self.scale = float(np.sqrt(((h - self.centre) ** 2).mean()))

    def features(self, h: Tensor) -> Tensor:
        """States (B, d), centred, scaled to a mean square of 1 over typical prompts: what the head reads."""
        return (h - torch.as_tensor(self.centre, device=h.device)) / self.scale

    @classmethod
    def embedded(cls, folder: Path = DATA / "coordinator") -> Backbone:
        """The shipped SLM. Raises: UserError if its files are missing or damaged."""
        model, card = TinyLM.load(folder, "slm")
        backbone = cls(model, model.tokenizer)
        if "centre" in card:
            try:
                backbone.centre, backbone.scale = np.array(card["centre"], dtype=np.float32), float(card["scale"])
                if backbone.centre.shape != (backbone.d,) or not 0 < backbone.scale < np.inf:
                    raise ValueError("another width")
            except (KeyError, TypeError, ValueError):
                raise UserError(f"{folder}/slm.json lacks centre or scale: restore it from the repository.") from None
        return backbone

    @classmethod
    def from_hub(
        cls,
        name: str | Path,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        layer: int | None = None,
        budget: int | None = None,
    ) -> Backbone:
        """A chat model from the Hugging Face hub or a local folder, such as Qwen/Qwen3-0.6B.

        On a GPU dtype=torch.bfloat16 halves the memory, see above. Raises: UserError if the model can be
        neither found nor read, or the device cannot be used.
        """
        from huggingface_hub import try_to_load_from_cache
        from transformers import AutoModelForCausalLM, AutoTokenizer

        remedy = (
            f"check the name, or download it where there is a network (`hf download {name}`) and give the folder; "
            "HF_HUB_OFFLINE must be unset"
        )
        with contextlib.suppress(ValueError):  # no name of the hub: said below
            if not Path(name).exists() and not isinstance(try_to_load_from_cache(str(name), "config.json"), str):
                need_hub(str(name), remedy)

        try:
            tokenizer = AutoTokenizer.from_pretrained(name)
            model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
        except (OSError, ValueError, KeyError) as e:
            reason = (str(e).strip() or type(e).__name__).splitlines()[0]
            raise UserError(f"cannot load {name} ({reason}): {remedy}.") from None
        try:
            model = model.to(device)
        except (RuntimeError, AssertionError) as e:
            reason = (str(e).strip() or type(e).__name__).splitlines()[0]
            raise UserError(
                f"cannot use device {device} ({reason}): choose cpu, or a device that this build of torch knows and "
                "that has room for the model."
            ) from None
        return cls(model, tokenizer, layer, budget)

    # ---- prompts -------------------------------------------------------------------------------

    def render(self, transcript: Transcript) -> Prompt:
        """What this backbone reads of a conversation: a text, or one message of a chat."""
        if self.tiny:
            return router_text(transcript)
        said = [(turn.role.label, turn.reply.text or "") for turn in transcript.turns]
        parts = [f"{label}: {indented(text)}" for label, text in [("Question", transcript.question), *said]]
        return [{"role": "user", "content": "\n\n".join(parts)}]

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: a text as it stands, messages through the chat template.

        What stands for a token of its own, such as <|im_end|>, is broken by a space in the content of messages: only
        the template writes those, so no text can end its message and begin another.

        Raises: UserError if the tokenizer has no chat template, or one that refuses the messages.
        """
        if isinstance(prompt, str):
            if self.tiny:
                return self.tokenizer.encode(prompt)
            return self.tokenizer(prompt, add_special_tokens=False).input_ids if prompt else []
        if self.tiny:
            raise ValueError("the embedded model reads rendered texts, not lists of messages.")
        if not prompt:
            return []
        template = self._template()
        plain = [{**message, "content": self._broken(message["content"])} for message in prompt]
        try:
            text = self.tokenizer.apply_chat_template(
                plain, chat_template=template, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        except Exception as e:  # a template is a program, and may raise anything
            raise UserError(
                f"the chat template of {self._tokenizer_name()} refuses a message of a user ({type(e).__name__}: {e}): "
                "choose another chat model."
            ) from None
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
            "turns": "indented",
            "template": digest(self._template()),
            "thinking": False,
            "tokenizer": digest(rules),
            "position": -2,
        }

    def _template(self) -> str:
        """The chat template: the default one where there are several. Raises: UserError if there is none."""
        found = self.tokenizer.chat_template
        found = found.get("default") if isinstance(found, dict) else found
        if not isinstance(found, str) or not found:
            raise UserError(
                f"the tokenizer {self._tokenizer_name()} has no chat template: choose a chat model (often its name "
                "ends in -Instruct)."
            )
        return found

    def _tokenizer_name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "") or type(self.tokenizer).__name__)

    def _broken(self, text: str) -> str:
        """A text without the strings of the tokenizer's added tokens: a space goes behind their first character."""
        if self._added is None:
            return text
        while (left := self._added.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)) != text:  # it may make another one
            text = left
        return text

    @cached_property
    def _added(self) -> re.Pattern[str] | None:
        """Finds the strings of added tokens; one character, or white space, is nothing to break."""
        strings = {s.strip() for s in self.tokenizer.added_tokens_encoder}
        longest_first = sorted((s for s in strings if len(s) > 1), key=lambda s: (-len(s), s))
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @property
    def weights_hash(self) -> str:
        """Content hash of all weights, in their own type; computed again if one was written to."""
        if self._hash[0] != self._weight_versions():
            parts = []
            for name, w in sorted(self.model.state_dict().items()):
                content = w.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                parts += [name, content.numpy().data]
            self._hash = self._weight_versions(), digest(*parts)
        return self._hash[1]

    # ---- SVF -----------------------------------------------------------------------------------

    def svf(self, matrices: str = "paper") -> SVF:
        """Coordinates of a matrix set, factored once.

        `paper`: q, k, v, o, gate, up, down of the adapted layer; `released`: those, then the
        embeddings and the head (inert where it is tied to them, and never seen by the state).
        Qwen3-0.6B: 7,168 and 9,216. Source: paper section 2.

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
        """Forget all states. Done by itself when the budget is spent or a weight was written to."""
        self._versions = self._weight_versions()
        if self.fast:
            self._batch.clear()

    def held(self) -> int:
        """Bytes of memory that cached states and rebuilt weights take, at most the budget."""
        return self._batch.held() if self.fast else 0

    def _weight_versions(self) -> int:
        return sum(p._version for p in self.model.parameters())

    def _rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        longest = int(positions.max()) + 1 if len(positions) else 0
        if longest > len(self._rope_table[0]):
            every = torch.arange(2 * longest, device=positions.device)
            if self.tiny:
                config = self.model.config
                self._rope_table = rotary(every, config.head_dim, config.rope_theta)
            else:
                like = self.model.model.embed_tokens.weight
                tables = self.model.model.rotary_emb(like, every[None])
                self._rope_table = tables[0][0], tables[1][0]
        return self._rope_table[0][positions], self._rope_table[1][positions]

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
        UserError if deltas are given for an architecture whose layers cannot be adapted, if a prompt
        is longer than the model reads, or where memory does not suffice for one.
        Source: paper section 2 (h(s)); the released run reads position -2.
        """
        texts = {p: self.encode(p) for p in {p for p in inputs if isinstance(p, str)}}  # candidates often share one
        ids = [texts[p] if isinstance(p, str) else self.encode(p) for p in inputs]
        for i, row in enumerate(ids):
            if len(row) < 2:
                raise ValueError(f"input {i} has {len(row)} token(s): position -2 needs at least 2.")
            if self.longest and len(row) > self.longest:
                raise UserError(
                    f"input {i} has {len(row):,} tokens and the language model reads at most {self.longest:,}: "
                    "let agents say less (max_tokens), or take fewer turns."
                )
        svf = None
        if deltas is not None:
            svf = self.svf(matrices)
            deltas = torch.as_tensor(deltas).to("cpu", torch.float32).numpy()
            if deltas.shape not in ((svf.n,), (len(ids), svf.n)):
                raise ValueError(f"deltas have shape {deltas.shape}: ({len(ids)}, {svf.n}) or ({svf.n},) is needed.")
            deltas = np.broadcast_to(deltas, (len(ids), svf.n))
        if not self.fast:
            return self._padded(ids)
        if self._versions != self._weight_versions():
            self.clear_cache()
        # Attention is causal: the last token cannot reach the state of the one before it.
        return self._batch.states([tuple(row[:-1]) for row in ids], svf, deltas)

    def _padded(self, ids: list[list[int]], rows: int = 16) -> Tensor:
        """Position -2 by transformers' own forward pass, right-padded, for any architecture."""
        device = self.model.device
        out = torch.empty(len(ids), self.d, device=device)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        for start in range(0, len(ids), rows):
            part = order[start : start + rows]
            lengths = torch.tensor([len(ids[i]) for i in part])
            mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
            padded = torch.zeros_like(mask)
            padded[mask.bool()] = torch.tensor([t for i in part for t in ids[i]])
            states = self.model.base_model(
                input_ids=padded.to(device),
                attention_mask=mask.to(device),
                output_hidden_states=True,
                use_cache=False,
            ).hidden_states[-1]
            out[part] = states[torch.arange(len(part)), lengths - 2].float()
        return out


def _decoder_shaped(config) -> bool:
    """Whether the layers are those that theta_batch computes: full attention, fixed rotations."""
    rope = getattr(config, "rope_parameters", None) or {}
    return (
        config.model_type in ("llama", "qwen2", "qwen3")
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and rope.get("rope_type", "default") in ("default", "linear", "llama3")
    )
