"""`outrider`: finds the command, imports only that one, and turns failures into one line."""

import os
import sys
from importlib import import_module
from typing import Annotated, NamedTuple

import typer

from outrider import __version__
from outrider.core.errors import OutriderError


class Command(NamedTuple):
    target: str  # module:function, imported when the command runs
    help: str


COMMANDS = {
    "generate": Command("outrider.cli.generate:generate", "Answer one prompt."),
    "chat": Command("outrider.cli.chat:chat", "Talk with a model in the terminal."),
    "bench": Command("outrider.bench.command:bench", "Measure drafters against plain decoding."),
    "train": Command("outrider.train.command:train_command", "Train a drafter for a model."),
    "export": Command(
        "outrider.export.command:export_command", "Write a drafter for vLLM and others."
    ),
    "pull": Command("outrider.cli.pull:pull", "Fetch a built-in model and print its folder."),
    "models": Command("outrider.cli.models:models", "List the built-in models."),
    "audit": Command("outrider.cli.audit:audit", "Prove that speculation is lossless."),
    "doctor": Command("outrider.cli.doctor:doctor", "Look at the machine and at a pair of models."),
}

ABOUT = "Lossless speculative decoding: the target model's own text, faster."
EXAMPLES = """Examples:

outrider generate "Why is the sky blue?"
outrider generate "Add type hints." --file script.py --max-tokens 400
outrider chat --model HuggingFaceTB/SmolLM2-360M-Instruct
outrider COMMAND --help
"""


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """The exit code of one call: 0, 2 for what the user can mend, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an odd locale costs a character, not the run
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except OutriderError as error:
        return _complain(str(error))
    except typer.TyperException as error:
        return _complain(f"{error.format_message()} (see {_program(argv)} --help)")
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader is gone. What is still buffered must not fail again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(argv: list[str]) -> int:
    name = argv[0] if argv else ""
    app = _command(name) if name in COMMANDS else _root()
    args = argv[1:] if name in COMMANDS else argv or ["--help"]
    return app(args, prog_name=_program(argv), standalone_mode=False) or 0


def _program(argv: list[str]) -> str:
    return f"outrider {argv[0]}" if argv and argv[0] in COMMANDS else "outrider"


def _command(name: str) -> typer.Typer:
    module, function = COMMANDS[name].target.split(":")
    app = typer.Typer(add_completion=False)
    app.command()(getattr(import_module(module), function))
    return app


def _root() -> typer.Typer:
    """Only what `--help` and `--version` need: the commands are listed, not imported."""
    app = typer.Typer(help=ABOUT, epilog=EXAMPLES, add_completion=False)
    app.callback()(_options)
    for name, command in COMMANDS.items():
        app.command(name, help=command.help)(_listed)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


def _listed() -> None:
    pass


def _complain(message: str) -> int:
    sys.stdout.flush()
    print("outrider:", " ".join(message.split()), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
