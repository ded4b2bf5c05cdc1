"""Dockerfiles, Kubernetes objects, compose files and the YAML of hosts, as the shell text that their containers run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoconfig.engines.commands import STARTED
from autoconfig.maps.tree import load_yaml
from autoconfig.specs.errors import InputError

ENV_FILE = ".env"
"""Whose variables Docker Compose puts into a file beside it."""
_VARIABLE = re.compile(r"\$\(([A-Za-z_]\w*)\)")
_SHELL_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^${}\n]*))?\})")
_INSTRUCTION = re.compile(r"\s*(FROM|ENV|ARG|CMD|ENTRYPOINT)\s+(.*)", re.IGNORECASE | re.DOTALL)
_SELECTORS = ("accelerator", "gpu.product", "gpu-type", "gpu_type", "instance-type")
_GPU_KEYS = ("accelerator", "accelerators", "gpu", "gpus", "gpu_type")
_ENVIRONMENTS = ("env", "envs", "environment", "environment_variables")


@dataclass(frozen=True, kw_only=True)
class Container:
    """What one container runs."""

    name: str
    text: str
    """Shell."""
    image: str = ""
    gpu: str = ""
    """As the file names it."""
    gpus: int | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the same document brings, by name."""


def is_dockerfile(text: str) -> bool:
    """Whether the first instruction is FROM (or ARG before it)."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    first = next((line.split() for line in lines if not line.upper().startswith("ARG ")), [])
    return len(first) > 1 and first[0].upper() == "FROM"


def dockerfile(text: str, given: Mapping[str, str] | None = None) -> Container:
    """What `docker run` of the image starts; `given`: values of build arguments. Variables of a FROM are the ARGs before the
    first one, which a stage has where it names them again. Raises InputError where it has neither CMD nor ENTRYPOINT."""
    joined = re.sub(r"\\[ \t]*\n", " ", re.sub(r"^[^\S\n]*+#.*\n?", "", text, flags=re.MULTILINE))
    stage = _DockerStage(given or {})
    for line in joined.splitlines():
        if match := _INSTRUCTION.fullmatch(line):
            stage.take(match[1].upper(), match[2].strip())
    return stage.container()


class _DockerStage:
    """The last stage of a Dockerfile, as far as it was read."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given, self.image, self.entry, self.command = given, "", "", ""
        self.lines: list[str] = []
        self.images: dict[str, str] = {}
        """Of the stages before, by name."""
        self.outer: dict[str, str] = {}
        """ARGs before the first FROM."""
        self.json_entry = False

    def take(self, word: str, rest: str) -> None:
        """Read one instruction."""
        if word == "FROM":
            self._from([one for one in rest.split() if not one.startswith("--")] or [""])
        elif word == "ARG" and not self.image:
            names = [one.partition("=")[0] for one in rest.split()]
            self.outer |= _pairs(rest) | {name: value for name, value in self.given.items() if name in names}
        elif word in ("ENV", "ARG"):
            named = word == "ARG" and rest in self.outer
            self.lines += _variables(f"{rest}={shlex.quote(self.outer[rest])}" if named else rest)
        else:
            words = _json_words(rest)
            shown = shlex.join(words) if words is not None else rest
            if word == "CMD":
                self.command = shown
            else:
                self.entry, self.json_entry, self.command = shown, words is not None, ""

    def _from(self, words: list[str]) -> None:
        """FROM IMAGE, FROM IMAGE AS NAME."""
        image = replaced(words[0], self.outer)
        self.image, self.lines, self.entry, self.command = self.images.get(image.lower(), image), [], "", ""
        if len(words) > 2 and words[1].upper() == "AS":
            self.images[words[2].lower()] = self.image

    def container(self) -> Container:
        """What the image starts. Raises InputError where it has neither CMD nor ENTRYPOINT."""
        entry, command = self.entry, self.command
        if not entry and not command:
            raise InputError("this Dockerfile has neither CMD nor ENTRYPOINT: give the command that `docker run` gets")
        started = f"{entry} {command}".strip() if self.json_entry else entry or command
        if not entry and not STARTED.search(started):
            started = f"docker run {self.image} {started}"  # of the image's own program
        return Container(name="Dockerfile", text="\n".join([*self.lines, started, ""]), image=self.image)


def _pairs(rest: str) -> dict[str, str]:
    """ENV NAME=VALUE ..., ENV NAME VALUE, ARG NAME, ARG NAME=VALUE; a name alone has none."""
    try:
        words = shlex.split(rest)
    except ValueError:
        return {}
    if words and "=" not in words[0]:
        words = [f"{words[0]}={' '.join(words[1:])}"] if len(words) > 1 else []
    pairs = [word.partition("=") for word in words]
    return {name: value for name, _, value in pairs if name.isidentifier()}


def _variables(rest: str) -> list[str]:
    return [f"export {name}={_open(value)}" for name, value in _pairs(rest).items()]


def replaced(text: str, values: Mapping[str, str]) -> str:
    """A text whose `$NAME`, `${NAME}` and `${NAME:-DEFAULT}` have their values; without one the default, else as written."""

    def value(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2]) or match[3] or match[0]

    return _SHELL_VARIABLE.sub(value, text)


def _json_words(rest: str) -> list[str] | None:
    try:
        words = json.loads(rest)
    except (ValueError, RecursionError):
        return None
    return [str(word) for word in words] if isinstance(words, list) else None


def _open(text: str) -> str:
    """A word whose `$NAME` and `${NAME}` stay variables."""
    return '"' + re.sub(r'(["`\\]|\$(?=\())', r"\\\1", text) + '"'


def _kubernetes_word(text: object) -> str:
    """A word of `command` or `args`: only $(NAME) is replaced."""
    parts, at, out = str(text), 0, ""
    for match in _VARIABLE.finditer(parts):
        out += (shlex.quote(parts[at : match.start()]) if match.start() > at else "") + f'"${{{match[1]}}}"'
        at = match.end()
    return out + (shlex.quote(parts[at:]) if at < len(parts) or not parts else "")


def documents(text: str) -> list[dict[Any, Any]]:
    """The mappings of a YAML file of one or several documents. Raises InputError."""
    parts = re.split(r"^---[ \t]*(?:#.*)?$", text, flags=re.MULTILINE)
    found = [load_yaml(part) for part in parts if part.strip()]
    return [one for one in found if isinstance(one, dict)]


def yaml_containers(text: str) -> list[Container]:
    """What the containers of a YAML file run, those that start a server. Raises InputError where the YAML cannot be read."""
    found: list[Container] = []
    whole = documents(text)
    files = {
        str(name): str(body) for one in whole if one.get("kind") == "ConfigMap" for name, body in _map(one.get("data")).items()
    }
    for one in whole:
        found += _of_document(one, files)
    started = [one for one in found if STARTED.search(one.text)]
    if started or not files:
        return started
    scripts = {name: body for name, body in files.items() if STARTED.search(body) and name.endswith(".sh")}
    first = found[0] if found else Container(name="", text="")
    return [replace(first, name=name, text=body, files=files) for name, body in scripts.items()]


def _of_document(one: dict[Any, Any], files: Mapping[str, str]) -> Iterable[Container]:
    """The containers of Kubernetes, of Compose, or of a host of GPUs."""
    if "apiVersion" in one:
        return _kubernetes(one, files)
    if isinstance(one.get("services"), dict):
        return [_service(str(name), service) for name, service in one["services"].items() if isinstance(service, dict)]
    return _of_host(one)


def _map(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _walk(value: Any, key: str) -> Iterator[tuple[dict[Any, Any], Any]]:
    """(mapping that holds it, value) of a key at any depth."""
    if isinstance(value, dict):
        if key in value:
            yield value, value[key]
        for inner in value.values():
            yield from _walk(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, key)


def _kubernetes(one: dict[Any, Any], files: Mapping[str, str]) -> Iterator[Container]:
    for pod, containers in _walk(one, "containers"):
        labels = [
            str(value) for key, value in _map(pod.get("nodeSelector")).items() if any(word in str(key) for word in _SELECTORS)
        ]
        for container in _list(containers):
            if isinstance(container, dict):
                yield _of_pod(container, labels[0] if labels else "", files)


def _of_pod(container: dict[Any, Any], gpu: str, files: Mapping[str, str]) -> Container:
    items = [item for item in _list(container.get("env")) if isinstance(item, dict) and {"name", "value"} <= item.keys()]
    limits = _map(_map(container.get("resources")).get("limits"))
    count = next((str(value) for key, value in limits.items() if str(key).strip().endswith("/gpu")), "")
    image = str(container.get("image", ""))
    command = [_kubernetes_word(word) for word in _words(container.get("command"))]
    args = [_kubernetes_word(word) for word in _words(container.get("args"))]
    words = [*command, *args] if command else ["docker", "run", shlex.quote(image), *args]
    return Container(
        name=str(container.get("name", "")),
        text="\n".join([*_exports({str(item["name"]): item["value"] for item in items}), " ".join(words), ""]),
        image=image,
        gpu=gpu,
        gpus=int(count) if count.isdigit() and int(count) else None,
        files=files,
    )


def _words(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else shlex.split(str(value))


def _exports(env: Mapping[str, Any]) -> list[str]:
    pairs = [(name, value) for name, value in env.items() if name.isidentifier()]
    return [f"export {name}=" + _open(_VARIABLE.sub(r"${\1}", str(value))) for name, value in pairs if value is not None]


def _service(name: str, service: dict[Any, Any]) -> Container:
    """Of compose: `$$` is a dollar, ${NAME:-DEFAULT} as in a shell."""
    image = str(service.get("image", ""))
    entry, command = (_composed(service.get(key)) for key in ("entrypoint", "command"))
    words = f"{entry} {command}".strip() if entry else command if STARTED.search(command) else f"docker run {image} {command}"
    devices = [one for _, found in _walk(service.get("deploy"), "devices") for one in _list(found) if isinstance(one, dict)]
    ids = _list(devices[0].get("device_ids")) if devices else []
    count = devices[0].get("count") if devices else None
    return Container(
        name=name,
        text="\n".join([*_exports(_environment(service.get("environment"))), words, ""]),
        image=image,
        gpus=len(ids) or (count if isinstance(count, int) and count > 0 else None),
    )


def _composed(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_open(str(word).replace("$$", "\\$")) if "$" in str(word) else shlex.quote(str(word)) for word in value)
    return "" if value is None else " ".join(str(value).replace("$$", "$").replace("\\\n", " ").splitlines())


def _environment(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {str(name): text for name, text in value.items()}
    pairs = [str(item).partition("=") for item in _list(value) if isinstance(item, str)]
    return {name: text for name, equals, text in pairs if equals}


def _of_host(one: dict[Any, Any]) -> list[Container]:
    """YAML of hosts (dstack, SkyPilot, truss and the like): texts that start a server, with the image and GPU beside them."""
    env = {name: value for key in _ENVIRONMENTS for name, value in _environment(one.get(key)).items()}
    image = next((str(value) for _, value in _walk(one, "image") if isinstance(value, str)), "")
    gpu, gpus = _accelerator(one)
    texts = [text for text in _texts(one) if STARTED.search(text)]
    return [
        Container(name="", text="\n".join([*_exports(env), text, ""]), image=image, gpu=gpu, gpus=gpus)
        for text in dict.fromkeys(texts)
        if len(text.split()) > 1
    ]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key != "image":
                yield from _texts(inner)
    elif isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            yield "\n".join(" ".join(item.splitlines()) if "\\\n" not in item and "<<" not in item else item for item in value)
        else:
            for inner in value:
                yield from _texts(inner)


def _accelerator(one: dict[Any, Any]) -> tuple[str, int | None]:
    """`H100:4`, `MI300x`, `{H100: 8}`."""
    for key in _GPU_KEYS:
        for _, value in _walk(one.get("resources"), key):
            text = ":".join(map(str, next(iter(value.items())))) if isinstance(value, dict) and value else str(value)
            match = re.fullmatch(r"([A-Za-z][\w .-]*?)(?::([0-9]+))?", text.strip())
            if match:
                return match[1].replace("_", "-"), int(match[2]) if match[2] else None
    return "", None


def is_unit(text: str) -> bool:
    """Whether a text is a unit of systemd that starts something."""
    return "ExecStart=" in text and any(line.startswith("[Service]") for line in text.splitlines())


def unit(text: str) -> Container:
    """What a unit of systemd starts: its Environment= and ExecStart=."""
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        key, _, value = line.strip().partition("=")
        if key == "Environment":
            lines += _variables(value)
        elif key in ("ExecStart", "ExecStartPre"):
            lines.append(value.lstrip("-@:+!|"))
    return Container(name="unit", text="\n".join([*lines, ""]))


def is_compose(text: str) -> bool:
    """Whether a text may be a compose file."""
    return any(line.rstrip() == "services:" for line in text.splitlines())


def env_file(text: str) -> dict[str, str]:
    """NAME=VALUE of each line of an .env file; quotes go, and so does a comment behind a value."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        value, name = value.strip(), name.strip()
        if equals and name.isidentifier():
            quoted = value[:1] in ("'", '"') and value[0] in value[1:]
            found[name] = value[1:].partition(value[0])[0] if quoted else value.partition(" #")[0].strip()
    return found


def is_yaml(text: str) -> bool:
    """Whether a text may be YAML whose containers start a server: a mapping with texts that do."""
    first: Sequence[str] = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(first) and re.match(r"(?:---\s*$|[\"']?[A-Za-z_][\w .-]*+[\"']?\s*+:(?:\s|$))", first[0]) is not None
