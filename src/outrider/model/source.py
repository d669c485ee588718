"""What a model's name means: a zoo name, a folder, a GGUF file or an id on the hub."""

import os
import re
from difflib import get_close_matches
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from outrider.core.errors import ModelError, unknown_name
from outrider.model.zoo import ZOO, pull

# Weights only as safetensors, and only those at the top: repositories also hold other formats and
# copies of the same weights in subfolders or as `consolidated`.
SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.py", "*.tiktoken"]
WEIGHTS = ["*.safetensors"]
PICKLES = ["*.bin", "*.pt"]
IGNORED = ["*/*", "consolidated*"]


def locate(
    name: str, revision: str | None = None, *, weights: bool = True, pickles: bool = False
) -> Path:
    """The folder or `.gguf` file on this disk that `name` stands for, fetched if need be.

    Without `weights` a hub id brings only the small files: enough to look at its configuration.
    With `pickles` weights in torch's older format come, too: many drafters have no others.
    """
    base = name.split("@")[0]
    if base in ZOO:
        if revision is not None or base != name:
            raise ModelError(f"{base} is a zoo model, which has no revisions")
        return pull(name)
    path = Path(name).expanduser()
    if path.exists():
        return _checked_path(path)
    if _looks_like_path(name):
        what = "GGUF file" if path.suffix == ".gguf" else "model folder"
        raise ModelError(f"{what} {name!r} does not exist")
    if revision is None and "@" in name:
        name, revision = name.rsplit("@", 1)
    if "/" not in name and get_close_matches(name, ZOO, n=1):
        raise ModelError(unknown_name("model", name, ZOO))
    patterns = SMALL_FILES + (WEIGHTS if weights else []) + (PICKLES if pickles else [])
    return _from_hub(name, revision, patterns)


def _looks_like_path(name: str) -> bool:
    if name.startswith((os.sep, ".", "~")) or name.endswith((".gguf", "/", os.sep)):
        return True
    return name.count("/") > 1 or "\\" in name or bool(re.match(r"[A-Za-z]:", name))


def _checked_path(path: Path) -> Path:
    if path.is_file() and path.suffix != ".gguf":
        raise ModelError(f"{path} is a file but not a .gguf; give the folder that holds the model")
    if path.is_dir() and not (path / "config.json").is_file():
        ggufs = sorted(path.glob("*.gguf"))
        hint = f"; to load a GGUF, name the file, as in {ggufs[0]}" if ggufs else ""
        raise ModelError(f"{path} has no config.json, so it is not a model folder{hint}")
    return path


def _from_hub(name: str, revision: str | None, patterns: list[str]) -> Path:
    at = f" at revision {revision!r}" if revision else ""
    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=patterns, ignore_patterns=IGNORED
        )
    except GatedRepoError as error:
        raise ModelError(
            f"{name} is gated: accept its terms on its hub page and log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name} has no revision {revision!r} on the hub") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelError(
            f"{name!r} is no folder here, no zoo model ({', '.join(ZOO)}) and no public model on "
            "the hub; check the spelling"
        ) from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"{name!r}{at} is no folder here and no zoo model ({', '.join(ZOO)}), the hub cannot "
            "be reached, and its local cache lacks it; check the spelling and the network"
        ) from error
    return _checked_path(Path(folder))
