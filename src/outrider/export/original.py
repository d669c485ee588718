"""The layouts of the methods' authors, and the one that vLLM has for Medusa."""

import re
from typing import Any

import torch
from torch import Tensor

from outrider.export.layout import Source, Written, layers_config, require, tensors_of
from outrider.heads.medusa import MedusaOptions

LINEAR = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")


def eagle3(source: Source) -> Written:
    """The authors' network has no variants, and no key says which layers it reads."""
    head, options, target = source.head, source.head.options, source.target
    config = head.config
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    for flag in flags:
        require(not getattr(options, flag), f"it is of the variant {flag}")
    require(config.num_hidden_layers == 1, f"it has {config.num_hidden_layers} layers")
    require(config.model_type == "llama", "its layer norms queries and keys")
    require(not (config.attention_bias or config.mlp_bias), "its layer has biases")
    rope = config.rope_parameters["rope_type"]
    require(rope == "default", f"its rotary embedding is of the type {rope}")
    fixed = (2, target.layers // 2, target.layers - 3)
    require(
        head.taps == fixed,
        f"it reads the inputs of the target's layers {list(head.taps)} and not {list(fixed)}",
    )
    written = layers_config(source) | {
        "architectures": ["LlamaForCausalLM"],
        "draft_vocab_size": options.draft_vocabulary,
    }
    del written["rope_parameters"]
    if config.hidden_size != target.hidden:
        # Only then: with this key, the authors' code does not fetch the target's embeddings.
        written["target_hidden_size"] = target.hidden
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor
        for name, tensor in tensors_of(source).items()
    }
    return Written(tensors, written)


def dspark(source: Source) -> Written:
    """DFlash is the block without a Markov head."""
    head, options, target = source.head, source.head.options, source.target
    config = head.config
    require(config.model_type == "qwen3", "its layers do not norm queries and keys")
    require(not getattr(config, "mlp_bias", False), "its layers have biases in the MLP")
    require(0 not in head.taps, "it reads the target's embeddings, which are no layer's output")
    taps = {
        "mask_token_id": options.mask_token,
        "target_layer_ids": [tap - 1 for tap in head.taps],  # layers, by their outputs
    }
    written = layers_config(source) | {
        "block_size": options.block,
        "num_target_layers": target.layers,
        "target_hidden_size": target.hidden,
        "sample_from_anchor": options.from_anchor,
    }
    if options.markov_rank:
        written |= taps | {
            "architectures": ["Qwen3DSparkModel"],
            "draft_vocab_size": options.draft_vocabulary,
            "markov_rank": options.markov_rank,
            "markov_head_type": options.markov_type,
            "enable_confidence_head": options.confidence,
            "confidence_head_with_markov": options.confidence_with_markov,
        }
        return Written(tensors_of(source), written)
    require(not options.from_anchor, "without a Markov head, its first place guesses")
    require(not options.confidence, "it has a confidence head and no Markov head")
    require(
        not (options.own_embedding or options.own_output),
        "without a Markov head, it has embeddings or an output layer of its own",
    )
    written |= {"architectures": ["DFlashDraftModel"], "dflash_config": taps}
    return Written(tensors_of(source), written)


def medusa(source: Source) -> Written:
    options: MedusaOptions = source.head.options
    require(
        source.head.d2t is None,
        f"it knows {options.draft_vocabulary} of the target's {options.target_vocabulary} tokens",
    )
    tensors = dict(source.head.state_dict())
    require(_tied(tensors), f"its heads have {options.layers} layers with weights of their own")
    for head in range(options.heads):
        for layer in range(options.layers if not options.bias else 0):
            zeros = torch.zeros(options.hidden, dtype=source.head.dtype)
            tensors[f"{head}.{layer}.linear.bias"] = zeros
        if not options.own_outputs and options.shared_output:
            tensors[f"{head}.{options.layers}.weight"] = tensors["lm_head.weight"]
    tensors.pop("lm_head.weight", None)
    config = {
        "medusa_num_heads": options.heads,
        "medusa_num_layers": options.layers,
        "base_model_name_or_path": source.target_name,
    }
    return Written(tensors, config, pickle="medusa_lm_head.pt")


def medusa_of_vllm(source: Source) -> Written:
    options: MedusaOptions = source.head.options
    require(
        options.own_outputs or options.shared_output,
        "it uses the target's output layer, and the format's files must hold one",
    )
    tensors: dict[str, Tensor] = {}
    for name, tensor in source.head.state_dict().items():
        name = LINEAR.sub(r"blocks.\1.layers.\2.\3", name)
        name = re.sub(r"^(\d+)\.\d+\.weight", r"lm_heads.\1.weight", name)
        if name == "d2t":  # ids instead of offsets
            name, tensor = "token_map", tensor + torch.arange(len(tensor))
        tensors[name] = tensor
    if options.own_outputs:
        tensors.pop("lm_head.weight", None)  # not used
    # vLLM takes any key with "num" and "heads", or "layers", in it for these two.
    config: dict[str, Any] = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": options.heads,
        "num_hidden_layers": options.layers,
        "hidden_size": options.hidden,
        "vocab_size": options.target_vocabulary,
        "truncated_vocab_size": options.draft_vocabulary,
        "medusa_fc_bias": options.bias,
        "original_lm_head": not options.own_outputs,
        "base_model_name_or_path": source.target_name,
        "dtype": str(source.head.dtype).removeprefix("torch."),
    }
    return Written(tensors, config)


def _tied(tensors: dict[str, Tensor]) -> bool:
    """The layers of a head are equal: the authors' code makes them one."""
    firsts = {name: LINEAR.sub(r"\1.0.linear.\3", name) for name in tensors}
    return all(torch.equal(tensors[name], tensors[first]) for name, first in firsts.items())
