"""Whether a text is a launch file, by signs of its own: a shell that starts a program, arguments, a configuration of a
framework that is known. What shows none of them is none, whatever else it may be."""

from __future__ import annotations

import re

from autoconfig.formats.readers.bridge import is_list
from autoconfig.formats.recognise import UnknownFormat, recognise
from autoconfig.maps.tree import load_toml, load_yaml
from autoconfig.planning.export_files import MADE_BY
from autoconfig.specs.errors import InputError, UnsupportedError

MOST_PROSE = 0.25
"""Share of the lines of a script that may be no shell: help texts, files that it writes."""
LEAST_ARGUMENTS = 2
_SHEBANG = re.compile(r"\A\ufeff?#!\s{0,4}/")
_PROGRAMS = frozenset(
    (
        *("torchrun", "torch.distributed.run", "accelerate", "deepspeed", "composer", "colossalai", "llamafactory-cli", "lmf"),
        *("swift", "megatron", "trl", "axolotl", "primus-cli", "nemo", "tune", "xtuner", "vllm", "sglang", "trtllm-serve"),
        *("srun", "mpirun", "mpiexec", "docker", "podman", "singularity", "apptainer", "ray", "nsys", "python", "bash", "sh"),
    )
)
"""Programs that start a training, or start what starts it."""
_BEFORE = frozenset(("$", "exec", "nohup", "time", "sudo", "env", "eval", "uv", "poetry", "run"))
_ASSIGNED = re.compile(r"\w{1,60}=\S{0,400}")
_ARGUMENT = re.compile(r"--[a-z][\w-]{2,80}")
_SHELL = re.compile(
    r"(?:[#|&;(){}\\'\"$<>]|-{1,2}[A-Za-z]|\[{1,2} |\.{1,2}/|/|[A-Za-z_]\w*(?:\[[^\]\n]*\])?\+?=|[\w.+~@/-]+=\S"
    r"|[A-Za-z_]\w*\(\)|[\w*.|-]+\)|(?:export|local|declare|readonly|set|unset|shopt|cd|source|module|if|then|elif|else|fi|for|while|do|done|case|esac"
    r"|function|echo|printf|mkdir|rm|cp|ln|cat|eval|exit|exec|trap|ulimit|conda|pip\d?|sleep|wait|shift|return|nvidia-smi|git|tee"
    r"|EOF|FROM|RUN|ENV|CMD|ENTRYPOINT|WORKDIR|COPY)\b)"
)
_PYTHON = re.compile(r"^(?:from [\w.]{1,80} import |import [A-Za-z_]|(?:def|class) \w{1,80}[:(])", re.MULTILINE)


def is_launch_file(text: str) -> bool:
    """Whether a text is a launch file, of a format that is read or of one that is known by name and not read."""
    if _SHEBANG.match(text):
        return True
    scripted = _is_script(text)
    try:
        name, values = recognise(text)
    except UnknownFormat:
        return False
    except UnsupportedError:
        return scripted or len(_PYTHON.findall(text)) > 1 or _is_mapping(text)
    except InputError:
        return False
    if name == "plan":
        return MADE_BY in text
    return (
        values is not None or scripted or (name == "bridge" and is_list(text)) or (name == "arguments" and _is_json_list(text))
    )


def _is_script(text: str) -> bool:
    """Whether nearly all lines are ones of a shell, and they start a program or give it arguments."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    open_line, prose, starts, arguments = False, 0, False, set[str]()
    for line in lines:
        started = _starts(line.split())
        if not (open_line or started or _SHELL.match(line)):
            prose += 1
        elif not line.startswith("#"):
            starts |= started
            arguments.update(_ARGUMENT.findall(line))
        open_line = line.endswith(("\\", "(", "|", "&&"))
    return prose <= MOST_PROSE * len(lines) and (starts or len(arguments) >= LEAST_ARGUMENTS)


def _starts(words: list[str]) -> bool:
    """Whether a command, in words, starts a program with a script or arguments of its own."""
    at = next((at for at, word in enumerate(words) if word not in _BEFORE and not _ASSIGNED.fullmatch(word)), len(words))
    program, rest = "".join(words[at : at + 1]).strip("\"'"), words[at + 1 :]
    given = any(word.startswith(("--", "-m", "$", '"$')) or word.endswith((".py", ".sh", "\\")) for word in rest)
    name = program.rpartition("/")[2].strip("${}").lower().rstrip("0123456789.")
    if name in _PROGRAMS:
        return given or rest[:1] in (["launch"], ["train"], ["sft"], ["serve"])
    return given and (program.endswith((".py", ".sh")) or (program.startswith("$") and program[1:2].strip("{").isalpha()))


def _is_json_list(text: str) -> bool:
    return text.lstrip().startswith("[") and len(set(re.findall(r'"(--[a-z][\w-]{2,80})[="]', text))) >= LEAST_ARGUMENTS


def _is_mapping(text: str) -> bool:
    """Whether a text is YAML, JSON or TOML that holds keys."""
    for load in (load_yaml, load_toml):
        try:
            return isinstance(load(text), dict)
        except InputError:
            continue
    return False
