"""A target and its drafter, looked at before anything runs: files, tensors, vocabularies."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from outrider.core.errors import OutriderError
from outrider.heads.files import Files
from outrider.heads.formats import described, kind_of
from outrider.model.gguf_file import read_gguf_config, read_gguf_tokenizer
from outrider.model.loading import CONTEXT_KEYS, TOKENIZER_FILES, refuse_unsupported
from outrider.model.quantized import quantization_of
from outrider.model.quiet import quiet_transformers
from outrider.model.source import locate
from outrider.model.zoo import ZOO

SHOWN = 3  # tensors or tokens named where many differ


@dataclass(frozen=True)
class Finding:
    name: str
    ok: bool
    detail: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Checkpoint:
    """What the files of one model say about it."""

    name: str
    path: Path
    config: Any
    tokenizer: Any  # None: it has none

    @property
    def format(self) -> str:
        if self.path.is_file():
            return "GGUF file"
        kind = "zoo model" if self.name in ZOO else "checkpoint"
        return f"{kind}, {len(list(self.path.glob('*.safetensors')))} safetensors file(s)"

    @property
    def context_length(self) -> int | None:
        found = (getattr(self.config, key, None) for key in CONTEXT_KEYS)
        return next((length for length in found if isinstance(length, int)), None)


def inspect(role: str, name: str) -> tuple[Checkpoint | None, list[Finding]]:
    """One model's checkpoint, or None when it cannot be read at all."""
    try:
        checkpoint = _read(name)
        refuse_unsupported(checkpoint.config)
    except OutriderError as error:
        return None, [Finding(role, False, str(error))]
    config = checkpoint.config
    shape = (
        f"{config.model_type}, hidden size {config.hidden_size}, {config.num_hidden_layers} layers,"
        f" {config.vocab_size} token ids, context {checkpoint.context_length}"
    )
    return checkpoint, [
        Finding(role, True, f"{name}: {checkpoint.format}; {shape}"),
        _tensors(role, checkpoint),
    ]


def inspect_heads(name: str) -> Finding | None:
    """What the files of a trained drafter hold; None where they hold a model. Whether they fit the
    target shows when the pair is run."""
    try:
        files = Files.of(name)
        if kind_of(files) is None:
            return None
        return Finding("drafter", True, f"{name}: {described(files)}")
    except OutriderError as error:
        return Finding("drafter", False, str(error))


def _read(name: str) -> Checkpoint:
    path = locate(name)
    if path.is_file():
        config = read_gguf_config(path)
        return Checkpoint(name, path, config, read_gguf_tokenizer(path, 0))
    with quiet_transformers():
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True)
            has_tokenizer = any((path / file).is_file() for file in TOKENIZER_FILES)
            tokenizer = (
                AutoTokenizer.from_pretrained(path, local_files_only=True)
                if has_tokenizer
                else None
            )
        except Exception as error:
            raise OutriderError(f"{name!r} cannot be read: {_line(error)}") from error
    return Checkpoint(name, path, config, tokenizer)


def _tensors(role: str, checkpoint: Checkpoint) -> Finding:
    """Missing, unexpected or misshapen tensors. Safetensors are mapped, not read: quick."""
    what = f"{role}'s tensors"
    if checkpoint.path.is_file():
        return Finding(what, True, "in a GGUF file; checked when it is loaded")
    if (method := quantization_of(checkpoint.config)) is not None:  # may need a GPU even to be read
        return Finding(what, True, f"quantised ({method}); checked when it is loaded")
    with quiet_transformers():
        try:
            _, info = AutoModelForCausalLM.from_pretrained(
                checkpoint.path, dtype="auto", local_files_only=True, use_safetensors=True,
                ignore_mismatched_sizes=True, output_loading_info=True,
            )  # fmt: skip
        except Exception as error:
            return Finding(what, False, f"cannot be read: {_line(error)}")
    wrong = {
        kind: sorted(str(key) for key in info.get(f"{kind}_keys", ()))
        for kind in ("missing", "unexpected", "mismatched")
    }
    parts = [
        f"{len(keys)} {kind} ({', '.join(keys[:SHOWN])}{', …' if len(keys) > SHOWN else ''})"
        for kind, keys in wrong.items()
        if keys
    ]
    # Tensors that no module asks for are dead weight, not a fault.
    ok = not wrong["missing"] and not wrong["mismatched"]
    return Finding(what, ok, "; ".join(parts) or "all there, none left over")


def compare(target: Checkpoint, drafter: Checkpoint) -> list[Finding]:
    """Whether the two speak of the same tokens, over the same lengths."""
    findings = [_vocabularies(target, drafter)]
    ours, theirs = target.context_length, drafter.context_length
    if ours and theirs:
        shorter = f"; beyond {theirs} tokens nothing is drafted" if theirs < ours else ""
        findings.append(
            Finding("context lengths", True, f"target {ours}, drafter {theirs}{shorter}")
        )
    a, b = target.config.hidden_size, drafter.config.hidden_size
    findings.append(Finding("hidden sizes", True, f"target {a}, drafter {b} (need not be equal)"))
    return findings


def _vocabularies(target: Checkpoint, drafter: Checkpoint) -> Finding:
    name, a, b = "vocabularies", target.config.vocab_size, drafter.config.vocab_size
    if target.tokenizer is None or drafter.tokenizer is None:
        same = a == b
        detail = f"{a} and {b} token ids, and without both tokenizers they cannot be matched"
        return Finding(name, same, detail)
    ours, theirs = target.tokenizer.get_vocab(), drafter.tokenizer.get_vocab()
    differing = [token for token, i in ours.items() if theirs.get(token) != i]
    differing += [token for token in theirs if token not in ours]
    if differing:
        shown = ", ".join(repr(token) for token in differing[:SHOWN])
        detail = (
            f"different: {len(differing)} of {len(ours)} and {len(theirs)} entries, e.g. {shown};"
            " drafts are translated; a drafter with the same tokenizer needs no translation"
        )
        return Finding(name, True, detail)
    if a != b:
        return Finding(name, True, f"same {len(ours)} entries, padded to {a} and {b} token ids")
    return Finding(name, True, f"same: {len(ours)} entries, {a} token ids")


def chat_template(target: Checkpoint) -> Finding:
    has = target.tokenizer is not None and target.tokenizer.chat_template is not None
    return Finding(
        "chat template", True, "there" if has else "none: use plain prompts (generate --raw)"
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
