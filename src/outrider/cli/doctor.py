"""`outrider doctor`: the machine, the cache, and whether a pair of models will pay."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.audit.doctor.examine import Examination
    from outrider.audit.doctor.machine import FastPath

Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help="Check this model, too: name, hub id, folder or .gguf file."
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="A drafter's name, a draft model or a trained drafter; checked and measured with the "
        "model."
    ),
]


def doctor(
    model: Model = None,
    drafter: Drafter = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look at the machine, the model cache, and a model with its drafter.

    With --model or --drafter the pair is checked (files, tensors, vocabularies, lengths), loaded,
    which tells its fast paths and its memory, and measured on a few prompts, which tells whether
    speculation will pay. Exit code 1: the pair cannot work.

    Examples:

    outrider doctor
    outrider doctor --model smollm2-135m
    outrider doctor --model ./large --drafter ./small --json
    """
    from outrider.cli.audit import fetch, show_progress

    if drafter is not None and model is None:
        model = options.DEFAULT_MODEL
    if model is not None:
        fetch(model)
    with show_progress(as_json) as progress:
        from outrider.audit.doctor.examine import examine

        found = examine(
            model, drafter, progress, device=device, dtype=dtype, quantization=quantization
        )
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        _show(found)
    if not found.healthy:
        raise typer.Exit(1)


def _show(found: "Examination") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    _show_machine(console, found)
    _show_paths(console, "fast path", found.fast_paths)
    console.print(f"\nmodel cache: {found.cache['root']}", markup=False)
    for entry in found.cache["models"]:
        size = f"{entry['bytes'] / 1e6:.0f} MB"
        console.print(f"  {entry['name']}: {entry['state']}, {size}", markup=False)
    if found.findings:
        console.print()
        table = Table("pair", "", "what was found", box=None, pad_edge=False)
        for finding in found.findings:
            mark = "[green]ok[/green]" if finding.ok else "[bold red]WRONG[/bold red]"
            table.add_row(finding.name, mark, escape(finding.detail))
        console.print(table)
    if found.memory is not None:
        console.print()
        _show_paths(console, "of this model", found.model_paths)
        console.print(f"\nmemory on {found.memory}", markup=False)
    _show_measurement(console, found)


def _show_paths(console: "Console", title: str, paths: "list[FastPath]") -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title, "", "why", box=None, pad_edge=False)
    for path in paths:
        table.add_row(path.name, "[green]on[/green]" if path.on else "off", escape(path.why))
    console.print(table)


def _show_machine(console: "Console", found: "Examination") -> None:
    info = found.machine
    memory, gpus = info["memory_bytes"], info["gpus"]
    console.print(f"{info['cpu']}, {info['cores']} cores, {info['system']}", markup=False)
    console.print(f"instruction sets: {', '.join(info['instruction_sets']) or 'unknown'}")
    if memory["total"]:
        gib = [f"{memory[key] / 2**30:.1f} GiB" for key in ("total", "available")]
        console.print(f"memory: {gib[0]}, {gib[1]} available")
    for gpu in gpus:
        size = gpu["memory_bytes"]["total"] / 2**30
        console.print(f"GPU: {gpu['name']}, {size:.0f} GiB, capability {gpu['capability']}")
    if not gpus:
        console.print("GPU: none that torch sees")
    versions = (f"{name} {number or 'absent'}" for name, number in info["versions"].items())
    console.print(f"Python {info['python']}, {', '.join(versions)}\n", markup=False)


def _show_measurement(console: "Console", found: "Examination") -> None:
    measured = found.measurement
    if measured is None:
        return
    by_prompt = measured.acceptance_by_prompt.items()
    console.print(
        f"\nmean acceptance length {measured.mean_acceptance_length:.2f} with "
        f"{measured.rows_per_draft - 1:.1f} tokens per proposal; tokens per pass by prompt: "
        + ", ".join(f"{name} {tokens:.2f}" for name, tokens in by_prompt),
        markup=False,
    )
    console.print(measured.verdict, markup=False)
