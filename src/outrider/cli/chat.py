"""`outrider chat`: a conversation in the terminal."""

import contextlib
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from outrider.cli import options
from outrider.core.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from outrider import LLM
    from outrider.cli.render import Screen

HELP = """/reset  forget the conversation
/exit   quit (or Ctrl-D)
/help   this list
Ctrl-C  stop the answer"""


def chat(
    system: options.System = None,
    color: options.Color = None,
    model: options.Model = options.DEFAULT_MODEL,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = None,
    reproducible: options.Reproducible = False,
    drafter: options.Drafter = None,
    num_speculative_tokens: options.DraftLength = None,
    speculative_config: options.SpeculativeConfig = None,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = 512,
    stop: options.Stop = None,
) -> None:
    """Talk with a model in the terminal.

    Ctrl-C stops an answer, Ctrl-D or /exit quits, /reset starts over, /help lists the commands.

    Examples:

    outrider chat
    outrider chat --system "Answer in one sentence." --temperature 0.7
    outrider chat --model ./my-model --drafter none
    """
    from outrider.cli.render import Screen

    speculation = options.speculative_config(drafter, num_speculative_tokens, speculative_config)
    params = options.sampling_params(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed,
        max_tokens=max_tokens, stop=stop,
    )  # fmt: skip
    llm = options.load(
        model, speculation, device=device, dtype=dtype, quantization=quantization,
        reproducible=reproducible,
    )  # fmt: skip
    screen = Screen(color)
    screen.legend(llm.model_name, llm.drafter_name)
    if screen.terminal:
        screen.note("/help lists the commands, Ctrl-D quits")
    Conversation(llm, params, screen, system).run()


class Conversation:
    def __init__(self, llm: "LLM", params: Any, screen: "Screen", system: str | None) -> None:
        self.llm = llm
        self.params = params
        self.screen = screen
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._start)

    def run(self) -> None:
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  input() then edits lines and remembers them
        while (line := self._read()) is not None:
            match line.strip():
                case "":
                    pass
                case "/exit":
                    return
                case "/help":
                    self.screen.note(HELP)
                case "/reset":
                    self.messages = list(self._start)
                    self.screen.note("the conversation starts over")
                case command if command.startswith("/") and " " not in command:
                    self.screen.note(f"unknown command {command}\n{HELP}")
                case _:
                    self._answer(line)

    def _read(self) -> str | None:
        """A line, or None at the end of the input."""
        while True:
            try:
                return input("> " if sys.stdin.isatty() else "")
            except EOFError:
                if self.screen.terminal:
                    print()
                return None
            except KeyboardInterrupt:
                print()
                self.screen.note("Ctrl-D or /exit quits")
            except UnicodeDecodeError:
                raise ConfigError("the input is not UTF-8 text") from None

    def _answer(self, line: str) -> None:
        from outrider.cli.render import closing_line
        from outrider.cli.stream import follow

        self.messages.append({"role": "user", "content": line})
        interrupt = Interrupt()
        try:
            with interrupt:
                prompt = self.llm.chat_prompt(self.messages)
                answer = follow(
                    self.llm, prompt, self.params, self.screen.write, lambda: interrupt.wanted
                )
        except InvalidRequest as error:  # most often a conversation longer than the context
            self.messages.pop()
            self.screen.note(f"{error} (/reset starts over)")
            return
        except KeyboardInterrupt:  # a second Ctrl-C, before the first token came
            self.messages.pop()
            self.screen.note("stopped; the question is forgotten")
            return
        self.messages.append({"role": "assistant", "content": answer.text})
        gap = "\n" if self.screen.terminal else ""  # before the next question
        self.screen.note(closing_line(answer) + gap)


class Interrupt:
    """Turns Ctrl-C into a flag while an answer is written.

    An exception could strike in the middle of an engine step and leave it inconsistent; a flag is
    read between two steps. A second Ctrl-C is an exception again, should a step take too long.
    """

    def __init__(self) -> None:
        self.wanted = False

    def __enter__(self) -> "Interrupt":
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
