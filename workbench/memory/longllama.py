"""Checkpoints of LongLLaMA: weights named as LLaMA's, a configuration of their own.

The released code is not needed, and none that comes with a checkpoint is run: the weights go into
transformers' own LLaMA, the memory's settings into a `LongLLaMA`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from workbench.core.checks import check_option
from workbench.core.errors import MissingDataError, ModelError
from workbench.memory.focused import LongLLaMA
from workbench.models import LanguageModel, default_device

__all__ = ["load_longllama"]

_SHARED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
_COMPUTED = "rotary_emb.inv_freq"  # tables that LLaMA of transformers 4 kept among its weights


def load_longllama(
    folder: str | Path,
    *,
    tokenizer: Any = None,
    dtype: str = "float32",
    device: str | None = None,
    **options: Any,
) -> LongLLaMA:
    """A LongLLaMA checkpoint as a memory system.

    Of its configuration are taken mem_layers, mem_positionals (False: no positions in memory
    layers) and max_position_embeddings, which is the length of the window; mem_dtype,
    mem_attention_grouping and torch_attention only concern the released code's speed and number
    formats. The window slides here; last_context_length= (1024 there, unless the configuration says
    otherwise) has texts cut into windows as they are there.

    Parameters
    ----------
    folder : with config.json, the weights and the tokenizer.
    tokenizer : where the folder has none.
    dtype, device : see `load_model`.
    options : of `LongLLaMA`; they go before the checkpoint's own.

    Raises
    ------
    MissingDataError : there is no configuration.
    ModelError : it is not LongLLaMA's, names no memory layers, or the weights do not fit it.
    """
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    check_option("dtype", dtype, ("float32", "float64", "bfloat16", "float16"))
    place = Path(folder).expanduser()
    file = place / "config.json"
    if not file.is_file():
        raise MissingDataError(f"{file} is not there; give the folder of a LongLLaMA checkpoint.")
    about = json.loads(file.read_text(encoding="utf-8"))
    if about.get("rope_scaling") is not None:
        raise ModelError(f"{file}: rope_scaling= is not known to LongLLaMA.")
    if about.get("model_type") != "longllama":
        raise ModelError(
            f"{file} is of a {about.get('model_type')!r} model; load it with load_model, and give "
            "it to LongLLaMA with memory_layers=."
        )
    shared = {name: about[name] for name in _SHARED if name in about}
    theta = float(about.get("rope_theta", 10000.0))
    config = LlamaConfig(
        **{"max_position_embeddings": 2048, **shared},
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    found: Any
    try:
        found = LlamaForCausalLM.from_pretrained(
            place, config=config, dtype=getattr(torch, dtype), output_loading_info=True
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"{place} holds no weights that fit its config.json: {error}") from None
    model, info = found
    missing = sorted(info["missing_keys"])
    unknown = sorted(name for name in info["unexpected_keys"] if not name.endswith(_COMPUTED))
    if missing or unknown:
        raise ModelError(
            f"the weights in {place} are not those of its config.json: missing {missing[:3]}, "
            f"unknown {unknown[:3]} (of {len(missing)} and {len(unknown)})."
        )
    if tokenizer is None:
        tokenizer = AutoTokenizer.from_pretrained(place, config=config)
    model = model.to(default_device() if device is None else device)
    lm = LanguageModel(
        place.name, model, tokenizer, provenance=f"{place.name}, a LongLLaMA checkpoint."
    )
    own: dict[str, Any] = {
        "memory_layers": list(about.get("mem_layers", [])),
        "n_local": config.max_position_embeddings,
        "position": "zero" if about.get("mem_positionals", True) else "none",
    }
    if not own["memory_layers"] and "memory_layers" not in options:
        raise ModelError(f"{file}: mem_layers= is empty; give memory_layers=.")
    return LongLLaMA(lm, **{**own, **options})
