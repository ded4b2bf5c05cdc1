"""The command of a script that starts training: its program, its arguments, and how many GPUs its launcher names."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from autoconfig.megatron.shell.commands import Source, Value, is_name, joined, plain_value, reason_of, text_of, unknown
from autoconfig.specs.errors import UnsupportedError

_NOT_LAUNCHERS = "echo printf cat tee grep sed awk rm mv cp mkdir cd ls chmod touch tar wget curl git pip pip3 export set"
_TASKS = frozenset({"--ntasks", "-n", "-np", "--np", "--worker-num"})
"""Processes of all nodes; --worker-num: of MindSpore's msrun."""
_NODES = frozenset({"--nodes", "-N", "--nnodes", "--num-nodes"})
_PER_NODE = frozenset({"--nproc-per-node", "--num-gpus", "--ntasks-per-node", "--gpus-per-node", "--gpus-on-node"})
_SHELLS = frozenset({"bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash"})
_TAKES_TEXT = frozenset({"-c", "--command", "--commandline", "--cmd", "--entrypoint", "--wrap"})
"""Options of clusters' own launchers whose value is a command line, like `bcprun -p 8 -c TEXT`."""
_STARTS_TASKS = frozenset({"msrun", "srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "horovodrun"})
"""Launchers whose -n is a number of processes, each with a GPU of its own."""
_REMOTE = {
    "ssh": frozenset(f"-{letter}" for letter in "bcDEeFIiJLlmOopQRSWw"),
    "pdsh": frozenset({"-w", "-x", "-g", "-X", "-f", "-l", "-R", "-t", "-u"}),
    "clush": frozenset({"-w", "-x", "-g", "-X", "-f", "-l", "-o", "-t", "-u"}),
}
"""Programs that start text on other machines, and their options with a value of their own."""
_WRAPPERS = frozenset({"nohup", "exec", "time", "nice"})
_SCHEDULED = re.compile(r"^#(?:SBATCH|PBS|BSUB|PJM|COBALT|OAR|\$)[ \t]", re.MULTILINE)
_COMMAND = re.compile(r"^[ \t]*[^#\s]", re.MULTILINE)
_RANKED = re.compile(
    r"\$\{?(?:SLURM_|OMPI_|PMI_|PMIX_|MV2_|PALS_|LSB_|PBS_|WORLD_SIZE|RANK\b|NODE_RANK|NNODES|NUM_NODES|NUM_GPUS)"
)
_STARTING_MODULES = ("torch.distributed", "deepspeed", "accelerate", "paddle.distributed", "mpi4py")
MIN_ARGUMENTS = 3
"""A command with fewer of the program's arguments starts something else."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """The training program whose launch is looked for."""

    name: str
    arguments: Container[str]
    decisive: frozenset[str]
    """Those of them that every training run gives and nothing else has."""
    refuse: Callable[[str, int], None]
    """Raises UnsupportedError for a program, started in a line, that trains something else."""
    launch: Callable[[Sequence[Value], int], Launch | None] | None = None
    """What tells a launch by its words and its line, where it is another one than of a .py file."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One command that hands arguments to a training program."""

    arguments: tuple[Value, ...]
    program: str
    before: tuple[Value, ...]
    """Words in front of the program: the launcher and its options."""
    line: int
    is_decisive: bool
    """One of the program's decisive arguments is given."""
    refused: UnsupportedError | None = None
    """Why the program that it starts is none that can be read."""


def launch_of(fields: Sequence[Value], line: int, wanted: Program) -> Launch | None:
    """The launch that a command's words are; None for any other command."""
    texts = [text_of(value) for value in fields]
    if texts[0].rsplit("/", 1)[-1] in _NOT_LAUNCHERS.split():
        return None
    if wanted.launch is not None:
        return wanted.launch(fields, line)
    program, module = _program(texts), _module(texts)
    if program is None or (module is not None and module < program):  # behind a module, a .py file is a value of its options
        return _of_module(fields, texts, line, wanted, module)
    behind = _behind(fields, program, line)
    names = [argument_name(text_of(value)) for value in behind]
    decisive = bool(wanted.decisive & set(names))
    hidden = any(piece.unknown and not piece.unset for value in behind for piece in value)  # it may hold the others
    if not (hidden and decisive) and sum(name in wanted.arguments for name in names) < MIN_ARGUMENTS:
        return None
    refused = _refused(wanted, texts[program], line)
    return Launch(
        arguments=tuple(behind),
        program=texts[program],
        before=tuple(fields[:program]),
        line=line,
        is_decisive=decisive,
        refused=refused,
    )


def _behind(fields: Sequence[Value], program: int, line: int) -> list[Value]:
    """The words behind a program, and what xargs adds to them."""
    words = list(fields[program + 1 :])
    if any(text_of(value).rsplit("/", 1)[-1] == "xargs" for value in fields[:program]):
        words.append(unknown("$(xargs)", f"xargs in line {line} adds words that are not read"))
    return words


def _program(texts: Sequence[str]) -> int | None:
    """Where the .py file stands that a command starts."""
    return next((at for at, text in enumerate(texts) if text.endswith(".py") and not text.startswith("-")), None)


def _of_module(fields: Sequence[Value], texts: Sequence[str], line: int, wanted: Program, module: int | None) -> Launch | None:
    """The launch of `python -m MODULE`, or of a program of another name; None where no decisive argument is given."""
    names = [argument_name(text) for text in texts]
    if not wanted.decisive & set(names):
        return None
    modules = [name for flag, name in pairwise(texts) if flag == "-m" and not name.startswith(_STARTING_MODULES)]
    refusals = (_refused(wanted, name.replace(".", "/") + ".py", line) for name in modules)
    options = _NODES | _PER_NODE | _TASKS
    first = next(at for at, name in enumerate(names) if name in wanted.arguments and name not in options)
    start = first if module is None else module + 1
    return Launch(
        arguments=tuple(fields[start:]),
        program="",
        before=tuple(fields[:start]),
        line=line,
        is_decisive=True,
        refused=next(filter(None, refusals), None),
    )


def _module(texts: Sequence[str]) -> int | None:
    """Where the name of the module stands that Python starts (`python -m verl.trainer.main_ppo`)."""
    python = next((i for i, text in enumerate(texts) if _is_python(text)), len(texts))
    pairs = enumerate(pairwise(texts[python:]), python + 1)
    return next(
        (at for at, (flag, name) in pairs if flag == "-m" and "." in name and not name.startswith(_STARTING_MODULES)), None
    )


def _refused(wanted: Program, program: str, line: int) -> UnsupportedError | None:
    try:
        wanted.refuse(program, line)
    except UnsupportedError as error:
        return error
    return None


def inner_script(name: str, fields: list[Value]) -> tuple[Value, list[Value], list[Value]] | None:
    """(commands as text, words before them, their "$@") of `eval TEXT` and of `... bash -c TEXT NAME WORDS`."""
    if name == "eval":
        return joined(fields[1:], plain_value(" ")), [], []
    texts = [text_of(value) for value in fields]
    if (commands := _of_shell(texts, fields)) is not None:
        return commands
    for position, text in enumerate(texts[1:], 1):
        if not _starts_a_file(text) or _is_python(texts[0]):
            continue
        if texts[position - 1] in _TAKES_TEXT:
            return fields[position], fields[: position - 1], []
        if text.partition("=")[0] in _TAKES_TEXT and (inner := _behind_equals(fields[position])):
            return inner, fields[:position], []
    return None


def _of_shell(texts: Sequence[str], fields: list[Value]) -> tuple[Value, list[Value], list[Value]] | None:
    """`inner_script` of a shell that is called, or is the entry point of a container."""
    for position, text in enumerate(texts[:-2]):
        if text in _SHELLS and _runs_text(texts[position + 1]):
            return fields[position + 2], fields[:position], fields[position + 4 :]
        entry = text.removeprefix("--entrypoint=") if text != "--entrypoint" else texts[position + 1]
        if text.startswith("--entrypoint") and entry in _SHELLS:  # docker run --entrypoint bash IMAGE -c TEXT
            flags = (at for at in range(position + 1, len(texts) - 1) if _runs_text(texts[at]))
            if at := next(flags, 0):
                return fields[at + 1], fields[:at], fields[at + 3 :]
    return None


def _is_python(text: str) -> bool:
    return text.rsplit("/", 1)[-1].rstrip("0123456789.") == "python"


def _runs_text(option: str) -> bool:
    """Whether an option is that of `bash -c` and its kin (-lc)."""
    return option[:1] == "-" and option[1:].isalpha() and option.islower() and "c" in option


def _starts_a_file(text: str) -> bool:
    """Whether a text is a command line: a .py file, and an option behind it."""
    words = text.split()
    file = next((at for at, word in enumerate(words) if word.endswith(".py") and len(word) > 3), len(words))
    return any(word.startswith("--") and len(word) > 2 for word in words[file + 2 :])


def _behind_equals(value: Value) -> Value:
    """The value of `--wrap=TEXT`, each character where it stands; empty where the name is not plain text."""
    first, cut = value[0], value[0].text.find("=") + 1
    if first.unknown or not cut:
        return ()
    return (replace(first, text=first.text[cut:], origin=first.origin[cut:]), *value[1:])


def source_of(value: Value, file_text: str) -> tuple[Source, dict[str, Value]]:
    """A value as text to be read as commands, and what is not known in it, for which names of our own stand."""
    hidden: dict[str, Value] = {}
    text = ""
    origin: list[int | None] = []
    for piece in value:
        shown = piece.text
        if piece.unknown:
            shown = f"${{autoconfig_unknown_{len(hidden)}}}"
            hidden[shown[2:-1]] = (piece,)
        text += shown
        origin += list(piece.origin) if len(piece.origin) == len(shown) else [None] * len(shown)
    return Source(text=text, origin=origin, file_text=file_text), hidden


_CONTAINERS = frozenset({"docker", "podman", "nerdctl", "enroot", "apptainer", "singularity"})


def container_environment(words: Sequence[Value]) -> dict[str, Value]:
    """Variables that `docker run -e NAME=VALUE` sets for what it starts."""
    if not words or text_of(words[0]).rsplit("/", 1)[-1] not in {*_CONTAINERS, "sudo"}:
        return {}
    environment: dict[str, Value] = {}
    for flag, value in pairwise(words):
        name, equals, _ = text_of(value).partition("=")
        if text_of(flag) in ("-e", "--env") and equals and is_name(name):
            environment[name] = _behind_equals(value)
    return environment


def argument_name(text: str) -> str:
    """The name of an argument, without `=VALUE` and with - for _."""
    return text.split("=")[0].replace("_", "-")


def remote_command(fields: Sequence[Value]) -> tuple[Value, list[Value]] | None:
    """(commands as text, words before them) of `ssh [OPTIONS] HOST COMMAND` and of pdsh and clush, which hand over text."""
    kind = text_of(fields[0]).rsplit("/", 1)[-1]
    if kind not in _REMOTE:
        return None
    at, hosts = 1, kind == "ssh"
    while at < len(fields) and (text_of(fields[at]).startswith("-") or hosts):
        text = text_of(fields[at])
        hosts &= text.startswith("-")
        at += 2 if text in _REMOTE[kind] else 1
    return (joined(fields[at:], plain_value(" ")), list(fields[:at])) if at < len(fields) else None


def almost_a_launch(fields: Sequence[Value], line: int, wanted: Program) -> str:
    """What a command is that starts a .py file without enough of the program's arguments; empty for other commands."""
    texts = [text_of(value) for value in fields]
    at = _program(texts)
    if at is None or texts[0].rsplit("/", 1)[-1] in _NOT_LAUNCHERS.split():
        return ""
    names = [text.split("=")[0] for text in texts if argument_name(text) in wanted.arguments]
    return (
        f"line {line} starts {texts[at][:80]} with {len(names)} argument{'s' * (len(names) != 1)} of {wanted.name}"
        f"{' (' + ' '.join(names) + ')' if names else ''}, and at least {MIN_ARGUMENTS} are needed"
    )


def gpus_of(launch: Launch, text: str) -> tuple[int | None, str]:
    """(number of GPUs, why it is not known) from the launcher's options, else from the #SBATCH lines. What plain
    python starts is one GPU where nothing in the script speaks of a scheduler or of MPI."""
    options = _launcher_options(launch.before)
    slurm = _slurm_beside(options, text)
    launchers = {text_of(value).rsplit("/", 1)[-1] for value in launch.before}
    if slots := _included(launch.before):
        return sum(slots), ""
    if each := _count(options, "--nproc-per-node", "--num-gpus"):
        nodes = _count(options, "--nnodes", "--num-nodes")
        if nodes is None and "deepspeed" in launchers:
            nodes = _count({**slurm, **options}, "--nodes", "-N")
        return _times(each, nodes or (1, ""))
    if launchers & _STARTS_TASKS or not launch.before:
        merged = {**slurm, **options} if "srun" in launchers or not options else options
        if tasks := _count(merged, "--ntasks", "-n", "-np", "--np", "--worker-num"):
            return tasks
        nodes, each = _count(merged, "--nodes", "-N", "--nnodes"), _count(merged, "--ntasks-per-node", "--gpus-per-node")
        if nodes and each:
            return _times(nodes, each)
    return _of_python(launch, text)


def _of_python(launch: Launch, text: str) -> tuple[int | None, str]:
    """(1, "") of a program that python alone starts, as one of one; else why the number is not known."""
    first = next((word for value in launch.before if (word := text_of(value)) not in _WRAPPERS), "")
    if not _is_python(first) or "-m" in map(text_of, launch.before):
        return None, f"the launcher of line {launch.line} does not say how many GPUs it starts"
    odd = _SCHEDULED.search(text[: commands_start(text)]) or _RANKED.search(text)
    if odd is None:
        return 1, ""
    starts = f"line {launch.line} starts the program with python alone"
    return None, f"{starts}, and {odd[0].strip()} says that it is one of many"


def node_of(launch: Launch, text: str) -> int | None:
    """GPUs of one node, where the launcher or the #SBATCH lines say them; None where they do not, or it is not known."""
    if slots := _included(launch.before):
        return max(slots)
    options = {name: plain_value(value) for name, value in sbatch_options(text).items()} | _launcher_options(launch.before)
    each = _count(options, "--nproc-per-node", "--num-gpus", "--gpus-per-node", "--ntasks-per-node")
    return each and each[0]


def _included(words: Sequence[Value]) -> list[int]:
    """GPUs of each host that `deepspeed --include HOST:0,1@HOST:0,1` names; none where a host has all of its own."""
    texts = [text_of(value) for value in words]
    if "deepspeed" not in {text.rsplit("/", 1)[-1] for text in texts}:
        return []
    joined = [text.partition("=")[2] for text in texts if text.startswith("--include=")]
    hosts = next(iter([*joined, *(value for name, value in pairwise(texts) if name in ("-i", "--include"))]), "").split("@")
    slots = [re.fullmatch(r"[\w.-]++:([0-9]++(?:,[0-9]++)*+)", host.strip("\"'")) for host in hosts]
    return [len(set(slot[1].split(","))) for slot in slots if slot] if all(slots) else []


def _slurm_beside(options: dict[str, Value], text: str) -> dict[str, Value]:
    """Of the #SBATCH lines, but for the nodes and tasks that the launcher's own `options` say by a short name."""
    own = {long for short, long in (("-N", "--nodes"), ("-n", "--ntasks")) if short in options}
    return {name: plain_value(value) for name, value in sbatch_options(text).items() if name not in own}


def over_booked(launch: Launch, text: str, *, total: bool) -> str:
    """Why the processes that the launcher starts have no GPU each among those that the #SBATCH lines ask for, of one node and,
    with `total`, of all; empty where they have, or it is not known. Without srun a launcher runs once on a node."""
    own = _launcher_options(launch.before)
    merged = _slurm_beside(own, text) | own

    def count(*names: str) -> int:
        return (_count(merged, *names) or (0, ""))[0] or 0

    by_srun = "srun" in {text_of(value).rsplit("/", 1)[-1] for value in launch.before}
    gpus, nodes = count("--gpus-per-node"), count("--nodes", *(["-N"] if by_srun else []))
    all_tasks = count("--ntasks", "-n") if by_srun and "--ntasks-per-node" not in own else 0
    tasks = -(-all_tasks // nodes) if all_tasks and nodes else (by_srun and count("--ntasks-per-node")) or 1
    each = tasks * (count("--nproc-per-node", "--num-gpus") or 1)
    started = (gpus_of(launch, text)[0] or 0) if total else 0
    if each > gpus > 0:
        how = f"{tasks} tasks of srun, {each // tasks} each" if tasks > 1 else "its launcher"
        starts = f"{each:,} processes on a node ({how}), each of which needs a GPU, and it asks Slurm for {gpus:,} a node"
        return f"line {launch.line} starts {starts}: change --nproc-per-node, --ntasks-per-node or --gpus-per-node"
    if started > gpus * nodes > 0:
        starts = f"{started:,} processes, and the file asks Slurm for {nodes:,} nodes of {gpus:,} GPUs"
        return f"line {launch.line} starts {starts}: change the launcher's nodes and processes, or --nodes"
    return ""


def _count(options: dict[str, Value], *names: str) -> tuple[int | None, str] | None:
    """(number, why it is not known) of the first of these options that is given; None where none is."""
    value = next((options[name] for name in names if name in options), None)
    if value is None:
        return None
    text = text_of(value)
    if (reason := reason_of(value)) or not (text.isascii() and text.isdecimal() and len(text) < 8 and int(text)):
        return None, reason or f"{text[:40]!r} is no number of GPUs or nodes"
    return int(text), ""


def _times(a: tuple[int | None, str], b: tuple[int | None, str]) -> tuple[int | None, str]:
    return (None, a[1] or b[1]) if a[0] is None or b[0] is None else (a[0] * b[0], "")


def _launcher_options(words: Sequence[Value]) -> dict[str, Value]:
    options: dict[str, Value] = {}
    for position, value in enumerate(words):
        text = text_of(value)
        name, equals, joined = text.partition("=")
        name = "--" + name[2:].replace("_", "-") if name.startswith("--") else name
        if name not in _NODES | _PER_NODE | _TASKS:
            continue
        if equals:
            options[name] = value if reason_of(value) else plain_value(joined)
        elif position + 1 < len(words):
            options[name] = words[position + 1]
    return options


def commands_start(text: str) -> int:
    """Where the first line stands that is neither blank nor a comment: from there on schedulers read no options."""
    return first.start() if (first := _COMMAND.search(text)) else len(text)


def sbatch_words(text: str) -> Iterator[tuple[str, str]]:
    """Options and values of the #SBATCH lines before the first command."""
    lines = text[: commands_start(text)].split("\n")
    lines = [line[7:].partition("#")[0] for line in lines if line.startswith(("#SBATCH ", "#SBATCH\t"))]
    for match in re.finditer(r"(?<!\S)(-{1,2}[A-Za-z][A-Za-z-]*)(?:=|[ \t]+|(?=[0-9]))([^\s=-][^\s]*)", "\n".join(lines)):
        yield match[1], match[2]


def sbatch_options(text: str) -> dict[str, str]:
    """Of the #SBATCH lines: how many nodes, tasks and GPUs there are, as plain numbers."""
    options: dict[str, str] = {}
    for name, value in sbatch_words(text):
        name = {"-N": "--nodes", "-n": "--ntasks"}.get(name, name)
        if name == "--gres":
            gpus = re.search(r"gpu(?::[A-Za-z0-9_.-]{1,80}){0,8}?:([0-9]{1,9})", value)
            name, value = "--gpus-per-node", gpus[1] if gpus else ""
        value = value.rsplit(":", 1)[-1] if name == "--gpus-per-node" else value
        if name in _NODES | _PER_NODE | _TASKS and value.isascii() and value.isdecimal() and len(value) < 8:
            options[name] = value
    return options


_SLURM = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}


def slurm_variables(text: str) -> dict[str, str]:
    """What Slurm would set from the #SBATCH lines: SLURM_NNODES, SLURM_NTASKS and the like."""
    options = sbatch_options(text)
    nodes, each = options.get("--nodes"), options.get("--ntasks-per-node")
    if nodes and each:
        options.setdefault("--ntasks", str(int(nodes) * int(each)))
    variables = {name: value for option, value in options.items() for name in _SLURM.get(option, ())}
    if options:  # inside of the job: a script that submits itself where these are not set goes on
        variables |= dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), "1")
    return variables
