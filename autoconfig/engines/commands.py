"""Which command of a shell text starts a server of an engine: its words, its variables, the files that the text writes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from autoconfig.engines.flags import NAMES, FlagWord, variables_in
from autoconfig.megatron.shell.commands import Value, text_of
from autoconfig.megatron.shell.launch import Launch, Program
from autoconfig.megatron.shell.script import HANDED_OVER, follow

STARTED = re.compile(
    r"\bvllm\s+serve\b|\bvllm\.entrypoints\.\S{0,200}api_server|\bvllm\.entrypoints\.cli\.main\b|\bsglang\.launch_server\b|"
    r"\bsglang\s+serve\b|\btrtllm-serve\b|\bvllm/vllm-openai\b"
)
"""Text that may start a server; what its words say is read by the shell."""
IMAGE = re.compile(
    r"(?:^|[\s\"'=])((?:[\w.-]+(?::[0-9]+)?/)*(?:(vllm)-openai|(sglang)|(tensorrt-llm)/release|(tensorrt_llm)))"
    r"(?::([\w.-]+)|:\$\S*)?(?:@sha256:[0-9a-f]+)?(?=[\s\"']|$)",
    re.MULTILINE,
)
_IMAGE_GROUPS = {2: "vllm", 3: "sglang", 4: "tensorrt-llm", 5: "tensorrt-llm"}
_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "apptainer", "singularity"})
_OTHER_COMMANDS = frozenset({"disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve", "grpc"})
"""Commands of trtllm-serve that serve no model by themselves."""
_PARSE_ONLY = frozenset({"-h", "--help", "--version"})


@dataclass(frozen=True, kw_only=True)
class Command:
    """One start of a server."""

    engine: str
    words: tuple[FlagWord, ...]
    """Behind the program."""
    before: tuple[str, ...]
    """In front of it: launchers, containers."""
    line: int
    image: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """What the text writes, by the name that it gives the file."""

    @property
    def shown(self) -> str:
        """The command in short, with the model first."""
        text = " ".join(word.text for word in self.words[:3])
        return f"line {self.line}: {NAMES[self.engine]} {text[:80]}".rstrip()


def image_of(text: str) -> tuple[str, str, str] | None:
    """(engine, image, tag) of the first engine's image that a text names."""
    match = IMAGE.search(text.replace("docker://", ""))  # of singularity and apptainer
    if match is None:
        return None
    engine = next(name for group, name in _IMAGE_GROUPS.items() if match[group])
    return engine, match[1], match[6] or ""


def program_of(texts: Sequence[str]) -> tuple[str, int] | None:
    """(engine, position of the first argument) of a command's words; None where they start no server."""
    for at, (text, after) in enumerate(pairwise([*texts, ""])):
        base = text.rsplit("/", 1)[-1]
        if base in ("vllm", "sglang") and after == "serve":
            return base, at + 2
        if text == "-m" and re.fullmatch(r"vllm\.entrypoints\.(?:\w+\.)*api_server", after):
            return "vllm", at + 2
        if text == "-m" and after == "vllm.entrypoints.cli.main" and texts[at + 2 : at + 3] == ["serve"]:
            return "vllm", at + 3
        if text == "-m" and after in ("sglang.launch_server", "sglang.srt.launch_server"):
            return "sglang", at + 2
        if base == "launch_server.py" and "sglang" in text:
            return "sglang", at + 1
        if base == "trtllm-serve":
            return None if after in _OTHER_COMMANDS else ("tensorrt-llm", at + 1 + (after == "serve"))
    return _entrypoint(texts)


def _entrypoint(texts: Sequence[str]) -> tuple[str, int] | None:
    """`docker run ... IMAGE ARGUMENTS`, where the image starts the server itself, or `--entrypoint vllm IMAGE serve`."""
    if not {text.rsplit("/", 1)[-1] for text in texts} & _CONTAINERS:
        return None
    if joined := " ".join(text for text in texts if text.startswith("--entrypoint")):
        return _named_entrypoint(texts, joined)
    images = (at for at, text in enumerate(texts[:-1]) if at and (image_of(text) or ("",))[0] == "vllm")
    return next((("vllm", at + 1) for at in images if _is_argument(texts[at + 1])), None)


def _named_entrypoint(texts: Sequence[str], joined: str) -> tuple[str, int] | None:
    """`--entrypoint vllm IMAGE serve`; `joined`: the words that begin so, as one."""
    own = joined.partition("=")[2] or next((after for text, after in pairwise(texts) if text == "--entrypoint"), "")
    engine, serve = own.rsplit("/", 1)[-1], texts.index("serve") if "serve" in texts else 0
    return (engine, serve + 1) if serve and engine in ("vllm", "sglang") and image_of(texts[serve - 1]) else None


def _is_argument(text: str) -> bool:
    """Whether a word behind an image is a flag or a model of the server, not a program that runs in its place."""
    return (text.startswith("-") or "/" in text) and not _is_shell(text)


def _is_shell(text: str) -> bool:
    return text.startswith("/") and text.rsplit("/", 1)[-1] in ("bash", "sh", "python3", "python")


def _word(value: Value) -> FlagWord:
    names = [name for piece in value if piece.unknown for name in variables_in(piece.text)]
    odd = next((piece.unknown for piece in value if piece.unknown), "")
    unset = ", ".join(f"${name}" for name in dict.fromkeys(names)) if odd and names else odd
    return FlagWord(text=text_of(value), unset=unset)


def _launch(fields: Sequence[Value], line: int) -> Launch | None:
    texts = [text_of(value) for value in fields]
    found = program_of(texts)
    if found is None or set(texts[found[1] :]) & _PARSE_ONLY:
        return None
    engine, first = found
    return Launch(arguments=tuple(fields[first:]), program=engine, before=tuple(fields[:first]), line=line, is_decisive=True)


def _refuse(program: str, line: int) -> None:
    """Nothing is refused by its name."""


_PROGRAM = Program(name="a serving engine", arguments=(), decisive=frozenset(), refuse=_refuse, launch=_launch)


def commands_of(text: str, settings: Mapping[str, str], image: str = "") -> tuple[list[Command], tuple[str, ...]]:
    """(the starts of a shell text in order, what was noted in reading it); `image`: in which it runs, where that is said
    elsewhere. Raises InputError where it cannot be read. Nothing is run."""
    reader = follow(text, _PROGRAM, settings)
    files = {name: text_of(value) for name, value in reader.files.items()}
    environment = {
        name: text_of(value)
        for name, value in reader.variables.values.items()
        if isinstance(value, tuple) and not any(piece.unknown for piece in value)
    }
    if not reader.launches:  # a batch script that writes the script which its tasks run
        for name, body in files.items():
            if name.endswith(".sh") and STARTED.search(body):
                return commands_of(body, settings, image)
    found = [
        Command(
            engine=launch.program,
            words=tuple(_word(value) for value in launch.arguments if text_of(value) not in HANDED_OVER),
            before=tuple(map(text_of, launch.before)),
            line=launch.line,
            image=next((name for value in launch.before if (name := _image_word(text_of(value)))), image),
            environment=environment,
            files=files,
        )
        for launch in reader.launches
    ]
    return found, tuple(reader.notes)


def _image_word(text: str) -> str:
    found = image_of(text)
    return text if found is not None and " " not in text else ""
