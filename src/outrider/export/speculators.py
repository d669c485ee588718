"""The format of the `speculators` package, which vLLM serves.

vLLM and the package assume different things where a configuration is silent, so everything that
matters is written, also where it is the package's default.
"""

from typing import Any

from outrider.export.layout import Source, Written, layers_config, require, tensors_of

VERSION = "0.9.0"  # of the package whose format this is
CHAIN = 3  # tokens that EAGLE-3 drafts, where a user of vLLM does not say


def eagle3(source: Source) -> Written:
    head, options = source.head, source.head.options
    _check_layers(source)
    require(
        not (options.norm_before_fc and options.fc_norm),
        "it norms the target's states both together and one by one",
    )
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    config = _config(source, "eagle3", "Eagle3DraftModel", CHAIN) | {
        "eagle_aux_hidden_state_layer_ids": list(head.taps),  # layers, by their inputs
        **{flag: getattr(options, flag) for flag in flags},
        "embed_requires_grad": False,
    }
    # The package counts on them: without, it runs on memory that nobody has filled.
    return Written(tensors_of(source), config, with_embeddings=not options.own_embedding)


def dspark(source: Source) -> Written:
    """DFlash is the block without a Markov head."""
    head, options = source.head, source.head.options
    _check_layers(source)
    require(head.config.model_type == "qwen3", "its layers do not norm queries and keys")
    # The package takes these from the target when it loads, whatever the files hold.
    require(not options.own_embedding, "it has embeddings of its own")
    require(
        not options.own_output or head.d2t is not None,
        "it has an output layer of its own for all of the target's tokens",
    )
    flash = options.markov_rank == 0
    require(not (flash and options.from_anchor), "without a Markov head, its first place guesses")
    require(not (flash and options.confidence), "it has a confidence head and no Markov head")
    name, model = ("dflash", "DFlashDraftModel") if flash else ("dspark", "DSparkDraftModel")
    config = _config(source, name, model, options.guesses) | {
        "block_size": options.block,
        "mask_token_id": options.mask_token,
        "aux_hidden_state_layer_ids": list(head.taps),  # layers, by their inputs
        "sample_from_anchor": options.from_anchor,
        "sliding_window_non_causal": False,
    }
    if not flash:
        config |= {
            "markov_rank": options.markov_rank,
            "markov_head_type": options.markov_type,
            "enable_confidence_head": options.confidence,
            "confidence_head_with_markov": options.confidence_with_markov,
        }
    return Written(tensors_of(source), config)


def _check_layers(source: Source) -> None:
    config, target = source.head.config, source.target
    require(
        config.hidden_size == target.hidden,
        f"its layers are {config.hidden_size} wide and the target's {target.hidden}",
    )
    require(
        config.model_type == "llama" or not getattr(config, "mlp_bias", False),
        "its layers norm queries and keys and have biases in the MLP",
    )


def _config(source: Source, algorithm: str, model: str, chain: int) -> dict[str, Any]:
    options = source.head.options
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": chain,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": [model],
        "speculators_model_type": algorithm,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": algorithm,
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": source.target_name,
                "architectures": source.architectures,
            },
        },
        "transformer_layer_config": layers_config(source),
        "draft_vocab_size": options.draft_vocabulary,
        "target_hidden_size": options.target_hidden,
        "tie_word_embeddings": False,
        "dtype": str(source.head.dtype).removeprefix("torch."),
    }
