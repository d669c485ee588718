"""A small model that writes as the target does, started from some of the target's layers."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from outrider.core.errors import ConfigError, ModelError
from outrider.heads.head import Head, Target
from outrider.model.quiet import quiet_transformers
from outrider.train.batch import Batch, Vocabulary
from outrider.train.objective import Learned

LAYERS_PER_LAYER = 8  # of the target, for each of the small model
DEPTHS = 5  # of a greedy chain that are judged


class Student(Head):
    """An ordinary model in the place of a head: it reads tokens, nothing of the target's. Its
    embeddings and output layer stay the target's; what lies between is learned."""

    taps = ()

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(None)
        self.model = model.eval()
        self.tokenizer = tokenizer
        for kept in (model.get_input_embeddings(), model.get_output_embeddings()):
            kept.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[texts, length] -> logits [texts, length, vocabulary]."""
        # Padding stands behind the texts, so a causal model needs no mask for it.
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits

    def borrow(self, target: Target) -> None:
        """It has copies: a model folder must be whole."""

    def train(self, mode: bool = True) -> "Student":
        """Never with dropout: the target has none either when it is asked."""
        super().train(False)
        return self

    def save(self, folder: Path) -> None:
        """As an ordinary model, in bfloat16."""
        with quiet_transformers():
            copy.deepcopy(self.model).bfloat16().save_pretrained(folder)
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)


def new_student(model: Any, tokenizer: Any, layers: int | None = None) -> Student:
    """The target with so many of its layers; by default an eighth of them, but two at least."""
    config = copy.deepcopy(model.config)
    if getattr(config, "quantization_config", None) is not None and not _all_plain(model):
        raise ConfigError(
            "a quantised model's layers cannot be trained; give the original model as --target"
        )
    config.__dict__.pop("quantization_config", None)
    shape = config.get_text_config()
    chosen = chosen_layers(shape.num_hidden_layers, layers)
    listed = _list_of_layers(model, shape.num_hidden_layers)
    _keep_layers(shape, chosen)
    with quiet_transformers():
        small = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    try:
        small.load_state_dict(_chosen_state(model, listed, chosen))
    except RuntimeError as error:
        raise ModelError(
            f"layers {chosen} of {type(model).__name__} do not make a model of their own ("
            f"{' '.join(str(error).split())[:200]}); give another --layers, or train another kind"
        ) from error
    small.generation_config = copy.deepcopy(model.generation_config)
    return Student(small, tokenizer)


def chosen_layers(count: int, wanted: int | None = None) -> list[int]:
    """Evenly spread over the target's layers, the first and the last among them."""
    if wanted is None:
        wanted = min(count, max(2, round(count / LAYERS_PER_LAYER)))
    if not min(2, count) <= wanted <= count:
        raise ConfigError(f"--layers must be 2 to {count}, the target's own, not {wanted}")
    return [round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)]


def distill(head: Any, batch: Batch, words: Vocabulary, random: torch.Generator) -> Learned:
    """How far its distribution is from the target's (Kullback-Leibler) after each token. `words`
    are all of the target's."""
    logits = head(batch.tokens)  # [texts, length, vocabulary]
    told = torch.zeros_like(batch.learned)  # whether the token after was written by the target
    told[:, :-1] = batch.learned[:, 1:]
    truth = batch.truth.at(told)
    p = truth.chances / truth.chances.sum(-1, keepdim=True)
    guess = logits[told].float()
    log_q = guess.gather(-1, truth.tokens) - guess.logsumexp(-1, keepdim=True)
    each = (torch.xlogy(p, p) - p * log_q).sum(-1)
    loss = each.sum() / told.sum().clamp(min=1)

    hit = logits.detach().argmax(-1) == batch.truth.best  # [texts, length]
    reached, agreed, counted = told, [], []
    for depth in range(min(DEPTHS, told.shape[1])):
        # A guess in a chain that holds is what it guesses after the same text.
        columns = told.shape[1] - depth
        reached = reached[:, :columns] & told[:, depth:]
        counted.append(reached.float().sum())
        reached = reached & hit[:, depth:]
        agreed.append(reached.float().sum())
    return Learned(loss, torch.stack(agreed), torch.stack(counted))


# ---- a model with fewer layers ----


def _all_plain(model: nn.Module) -> bool:
    """Whether weights are numbers of the usual types, as after a GGUF was unpacked."""
    return all(
        type(parameter) is nn.Parameter and parameter.is_floating_point()
        for parameter in model.state_dict(keep_vars=True).values()
        if isinstance(parameter, nn.Parameter)
    )


def _list_of_layers(model: nn.Module, count: int) -> str:
    """The name of the list that holds the decoder layers: the outermost of that length."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name
    raise ModelError(f"{type(model).__name__} has no list of {count} layers to choose from")


def _keep_layers(config: Any, chosen: list[int]) -> None:
    """Also in what a configuration says of each single layer, such as `layer_types`."""
    count = config.num_hidden_layers
    for key, value in vars(config).items():
        if "layer" in key and isinstance(value, (list, tuple)) and len(value) == count:
            setattr(config, key, [value[i] for i in chosen])
    config.num_hidden_layers = len(chosen)


def _chosen_state(model: nn.Module, listed: str, chosen: list[int]) -> dict[str, Tensor]:
    """The target's state, with the chosen layers under their new numbers."""
    places = {str(old): str(new) for new, old in enumerate(chosen)}
    state = {}
    for name, tensor in model.state_dict().items():
        if not name.startswith(f"{listed}."):
            state[name] = tensor
            continue
        number, rest = name.removeprefix(f"{listed}.").split(".", 1)
        if number in places:
            state[f"{listed}.{places[number]}.{rest}"] = tensor
    return state
