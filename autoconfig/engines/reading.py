"""Any file that starts a server of vLLM, SGLang or TensorRT-LLM, as its settings: which engine and release, which GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autoconfig.engines.commands import STARTED, Command, commands_of, image_of
from autoconfig.engines.containers import (
    ENV_FILE,
    Container,
    dockerfile,
    env_file,
    is_compose,
    is_dockerfile,
    is_unit,
    is_yaml,
    replaced,
    unit,
    yaml_containers,
)
from autoconfig.engines.flags import NAMES, FlagWord, Said, Settings, of_yaml, release_key, split
from autoconfig.maps.tree import load_yaml
from autoconfig.planning.work import bounded
from autoconfig.specs.engines.releases import first_release, newest_release
from autoconfig.specs.errors import FileError, InputError, option
from autoconfig.specs.files import read_text

MAX_BESIDE = 100_000
_PIN = re.compile(
    r"(?:^|[\s\"'=])(vllm|sglang|tensorrt[-_]llm)(?:\[[\w,.-]*\])?\s*"
    r"(?:==\s*v?([0-9]+(?:\.[0-9]+)+)|~=\s*v?([0-9]+(?:\.[0-9]+){2,}))",
    re.IGNORECASE | re.MULTILINE,
)
_INSIDE_TAG = re.compile(
    r"(?:[\w.-]{1,40}/)?\b(?:vllm|sglang|sgl)[\w-]{0,30}:(?:[\w.-]{0,60}[_-])?(vllm|sglang)[_-]?v?([0-9]+(?:\.[0-9]+)+)[\w.-]{0,60}"
)
"""Image of a vendor, whose tag names the engine among other releases: rocm/vllm:rocm6.4.1_vllm_0.10.0_20250812."""
_TAGGED = re.compile(
    r"(?<!\S)(?:(?!(?:vllm-openai|sglang|tensorrt-llm/release):)\S)*+(?:vllm-openai|sglang|tensorrt-llm/release):\S+"
)
_TAG = re.compile(r"v?([0-9]+\.[0-9]+(?:\.[0-9]+)*)")
_FILES = {"vllm": ("config",), "sglang": ("config",), "tensorrt-llm": ("config",)}
MODEL_SETTINGS = {"vllm": "model", "sglang": "model-path", "tensorrt-llm": "model"}
"""Setting that names the model."""
_NAMED = {"vllm": "vllm serve MODEL", "sglang": "--model-path MODEL", "tensorrt-llm": "trtllm-serve MODEL"}
SAME_ON_NODES = ("node-rank", "data-parallel-start-rank", "headless", "host", "port", "master-addr", "dist-init-addr")
"""Settings that differ between the commands of one server on several nodes."""


@dataclass(frozen=True, kw_only=True)
class ReadStart:
    """A start command as a file has it."""

    engine: str
    release: str
    """As the caller or the file says it; empty: the newest that is known."""
    release_source: str
    model: str
    """As it is written: an id, a path."""
    said: Mapping[str, Said]
    """Settings by the engine's own name, without dashes: those of the command and of the YAML that it names."""
    environment: Mapping[str, str]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]
    line: int
    missing: tuple[str, ...] = ()
    """Files of settings that the command names and nobody has seen."""
    gpu: str = ""
    """As the file names it."""
    gpus: int | None = None
    visible_gpus: int | None = None
    """That the environment of the server leaves it; None where it says nothing."""
    words: tuple[FlagWord, ...] = ()
    others: tuple[str, ...] = field(default=())
    """Further servers that the same file starts."""

    def value_or(self, name: str, default: int) -> int:
        """A whole number that is said, else the default."""
        value = self.value(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default

    def value(self, name: str) -> Any:
        """The value of a setting; None where it is not said. Raises InputError where a variable in it has no value."""
        one = self.said.get(name)
        if one is None:
            return None
        if one.unset:
            raise UnsetError(unset_text([(one.source, one.unset)]))
        return one.value


class UnsetError(InputError):
    """A value holds a variable that nothing sets."""


def unset_text(found: Sequence[tuple[str, str]]) -> str:
    """What is said of values, each with where it stands, that hold variables that nothing sets."""
    names = list(dict.fromkeys(name for _, unset in found for name in re.findall(r"\$\{?([A-Za-z_]\w*|[0-9])", unset)))
    sources = "; ".join(source for source, _ in found)
    odd = ", ".join(dict.fromkeys(unset for _, unset in found if "$" not in unset))
    is_not = "is" if len(names) == 1 else "are"
    said = f"{', '.join(f'${name}' for name in names)} {is_not} not set in the file" if names else odd
    if not names:
        said = said or "what a command prints is not known"
        return f"{sources}: {said}; write the value there; of one that a variable holds, say {option('set')} NAME=VALUE"
    return f"{sources}: {said}; say " + " ".join(f"{option('set')} {name}=VALUE" for name in names)


def starts_server(text: str) -> bool:
    """Whether a text may start a server of an engine: outside comments it names a program or an image that does."""
    return STARTED.search(re.sub(r"^[^\S\n]*+#.*$", "", text, flags=re.MULTILINE)) is not None


@bounded()
def read_start(
    text: str,
    settings: Mapping[str, str] | None = None,
    release: str | None = None,
    server: int | None = None,
    beside: Callable[[str], str | None] = lambda name: None,
) -> ReadStart:
    """The start of a server that a file's text holds. `settings`: values of variables that it does not set; `server`: which
    one, counted from 1, where it starts several; `beside`: the text of a file that the command names, where it is at hand.
    Raises InputError: no start, several servers, a value of another type."""
    given = settings or {}
    notes: list[str] = []
    commands: list[tuple[Container, Command]] = []
    if is_compose(text) and (body := beside(ENV_FILE)) is not None:
        given = {**env_file(body), **given}
        notes.append(f"variables of {ENV_FILE} beside the file")
    for container in _containers(text, given):
        found, said = commands_of(container.text, given, container.image)
        notes += said
        commands += [(container, command) for command in found]
    commands = _one_of_each(commands)
    if not commands:
        raise InputError(
            "no start of a server was found: a command is `vllm serve MODEL`, `python -m vllm.entrypoints.openai.api_server`, "
            "`python -m sglang.launch_server`, `sglang serve` or `trtllm-serve MODEL` (docs/check.md)"
        )
    shown = [command.shown for _, command in commands]
    _require_one(shown, server)
    container, command = commands[(server or 1) - 1]
    others = tuple(one for number, one in enumerate(shown, 1) if number != (server or 1))
    return _read(text, container, command, release, beside, tuple(dict.fromkeys(notes)), others)


def _require_one(shown: Sequence[str], server: int | None) -> None:
    """Raises InputError where of several servers none, or one that is not there, is asked for."""
    if len(shown) > 1 and server is None:
        listed = "; ".join(f"{number}: {one}" for number, one in enumerate(shown[:8], 1))
        raise InputError(f"this file starts {len(shown)} servers ({listed}): say {option('server')} 1, or give one alone")
    if server is not None and not 1 <= server <= len(shown):
        raise InputError(f"{option('server')} {server}: the file starts {len(shown)}", field="server")


def _containers(text: str, given: Mapping[str, str]) -> list[Container]:
    if is_dockerfile(text):
        return [dockerfile(text, given)]
    if is_unit(text):
        return [unit(text)]
    if is_yaml(text):
        return yaml_containers(text)
    return [Container(name="", text=text)]


def _identity(command: Command) -> tuple[object, ...]:
    words = [word.text for word in split(command.engine, command.words).positional]
    said = split(command.engine, command.words).said
    return (command.engine, *words, *sorted((name, str(one.value)) for name, one in said.items() if name not in SAME_ON_NODES))


def _one_of_each(commands: list[tuple[Container, Command]]) -> list[tuple[Container, Command]]:
    """Without the further commands of a server on several nodes, which differ in the rank."""
    if len(commands) < 2:
        return commands
    kept: dict[tuple[object, ...], tuple[Container, Command]] = {}
    for container, command in commands:
        kept.setdefault(_identity(command), (container, command))
    return list(kept.values())


def _release(text: str, command: Command, container: Container, asked: str | None) -> tuple[str, str]:
    """(release, where it is from)."""
    if asked:
        return asked, option("release")
    text, image = (replaced(one, command.environment) for one in (text, command.image or container.image))
    for name in filter(None, (image, *(match[0].strip() for match in _TAGGED.finditer(text)))):
        found = image_of(name)
        tag = _TAG.match(found[2]) if found and found[0] == command.engine else None
        if tag:
            return tag[1], "image " + name.strip("\"'")
    for match in _PIN.finditer(text):
        if match[1].lower().replace("_", "-") == command.engine:
            return match[2] or match[3], match[0].strip(" \"'=\n")
    for match in _INSIDE_TAG.finditer(text):
        if match[1] == command.engine:
            return match[2], f"image {match[0]}"
    return "", "the newest that is known"


def _read(
    text: str,
    container: Container,
    command: Command,
    asked: str | None,
    beside: Callable[[str], str | None],
    notes: tuple[str, ...],
    others: tuple[str, ...],
) -> ReadStart:
    engine = command.engine
    release, source = _release(text, command, container, asked)
    if asked and not release_key(asked):
        known = f"known are {first_release(engine)} to {newest_release(engine)}"
        raise InputError(
            f"{option('release')} {asked[:40]!r}: a release of {NAMES[engine]} is like {_EXAMPLE[engine]}; {known}",
            field="release",
        )
    settings = split(engine, command.words, release)
    said, unknown, missing = dict(settings.said), list(settings.unknown), []
    noted = [*notes, *settings.notes]
    for name in _FILES[engine]:
        one = said.get(name)
        if one is None or one.value is True:
            continue
        body = _body(str(one.value), command, container, beside)
        if body is None:
            missing.append(str(one.value))
            continue
        more = of_yaml(engine, _mapping(body, str(one.value)), str(one.value).rsplit("/", 1)[-1], release)
        unknown += more.unknown
        noted += more.notes
        said = {**said, **more.said} if engine == "tensorrt-llm" else {**more.said, **said}
    model, positional = _model(settings, said, command)
    unknown += [f"{word.text[:60]!r} belongs to no flag" for word in positional]
    return ReadStart(
        engine=engine,
        release=release,
        release_source=source,
        model=model,
        said=said,
        environment=command.environment,
        unknown=tuple(dict.fromkeys(unknown)),
        notes=tuple(dict.fromkeys(noted)),
        line=command.line,
        missing=tuple(missing),
        gpu=container.gpu,
        gpus=container.gpus,
        visible_gpus=None if others else _visible(command),
        words=command.words,
        others=others,
    )


_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "srun"})
"""In front of a command: what runs it where the script's environment may not reach, or once for each node."""


def _visible(command: Command) -> int | None:
    """GPUs of CUDA_VISIBLE_DEVICES (of HIP_VISIBLE_DEVICES): None where it names none, or something else than ids."""
    said = [command.environment.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")]
    ids = next(filter(None, said), "").split(",")
    if not _CONTAINERS.isdisjoint(word.rsplit("/", 1)[-1] for word in command.before):
        return None
    return len(ids) if all(re.fullmatch(r"\s*(?:[0-9]{1,3}|(?:GPU|MIG)-[\w/-]+)\s*", one) for one in ids) else None


_EXAMPLE = {"vllm": "0.19.1", "sglang": "0.5.9", "tensorrt-llm": "1.2"}


def _body(name: str, command: Command, container: Container, beside: Callable[[str], str | None]) -> str | None:
    """The text of a file that a command names: written in the script, brought in the same document, or beside it."""
    base = name.rsplit("/", 1)[-1]
    for files in (command.files, container.files):
        if name in files:
            return files[name]
        if found := next((body for file, body in files.items() if file.rsplit("/", 1)[-1] == base), None):
            return found
    return beside(base)


def _mapping(body: str, name: str) -> dict[str, Any]:
    try:
        values = load_yaml(body)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{name} holds no mapping of settings")
    return {str(key): value for key, value in values.items()}


def _model(settings: Settings, said: dict[str, Said], command: Command) -> tuple[str, tuple[FlagWord, ...]]:
    """(model as it is written, positional words that are none). Raises InputError where none is named."""
    key = MODEL_SETTINGS[settings.engine]
    positional = settings.positional
    if key in settings.said and settings.engine != "tensorrt-llm":
        first = FlagWord(text=str(settings.said[key].value), unset=settings.said[key].unset)
    elif settings.engine != "sglang" and positional:
        first, positional = positional[0], positional[1:]
    elif key in said:
        first = FlagWord(text=str(said[key].value), unset=said[key].unset)
    else:
        served = _NAMED[settings.engine]
        raise InputError(f"line {command.line}: the command names no model; say {option('model')}, or {served}", field="model")
    said[key] = (
        replace(said[key], value=first.text) if key in said else Said(value=first.text, source=first.text, unset=first.unset)
    )
    return first.text, positional


def file_beside(path: Path) -> Callable[[str], str | None]:
    """The text of another file in the folder of this one; None where there is none of a reasonable size."""

    def text(name: str) -> str | None:
        other = path.parent / name
        try:
            return None if name in ("", ".", "..") else read_text(other, "a file beside it", MAX_BESIDE)
        except FileError:
            return None

    return text
