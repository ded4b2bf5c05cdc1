"""The GPU that a script's #SBATCH lines ask Slurm for by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from autoconfig.planning.work import spend
from autoconfig.specs.errors import InputError, option
from autoconfig.specs.hardware.cluster import gpu_ids, load_gpu
from autoconfig.specs.remarks import Effect, Remark

_COUNTED = ("--gpus", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket", "-G")
_CONSTRAINTS = ("--constraint", "-C")
_TYPE = re.compile(r"(?:^|[,:/])gpu:(?:([\w.-]+)(?=:[0-9])|([A-Za-z][\w.-]*))")
"""`gpu:a100:8` and `gpu:a100`; `gpu:8` names none."""


def scheduled_gpu(options: Iterable[tuple[str, str]], named: str | None, assumed: list[Remark]) -> str | None:
    """The GPU to price: `named` by the caller, else what the `options` of the #SBATCH lines ask for, as the catalogue's
    aliases have it; None where neither says it. What is taken, or left, is added to `assumed`.
    Raises InputError where the lines leave a choice."""
    wanted: dict[str, str] = {}
    unknown: list[str] = []
    for name, word in _types(options):
        said = f"#SBATCH {name} asks for {word[:40]!r}"
        found = _meant(word)
        wanted |= dict.fromkeys(found, said)
        unknown += [] if found or name in _CONSTRAINTS else [said]
    if named is not None:
        if wanted and not {*_meant(named)} & {*wanted}:
            assumed.append(Remark("gpu", named, f"and {next(iter(wanted.values()))}", Effect.EVERYTHING))
        return named
    if len(wanted) > 1:
        said = ", ".join(dict.fromkeys(wanted.values()))
        raise InputError(f"{said}, which may be {' or '.join(wanted)}: say {option('gpu')}")
    for gpu, said in wanted.items():
        assumed.append(Remark("gpu", gpu, f"as {said}{_others(gpu)}", Effect.EVERYTHING))
        return gpu
    assumed += [Remark("gpu", None, f"GPU: {said}, which the catalogue does not know", Effect.EVERYTHING) for said in unknown]
    return None


def _types(options: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(option, name of a GPU), and every feature of a constraint, most of which are of something else."""
    for name, value in options:
        if name in _CONSTRAINTS:
            yield from ((name, word) for word in re.findall(r"[\w.-]+", value))
        elif name == "--gres" or name in _COUNTED:
            value = value.strip("\"'")
            found = _TYPE.finditer(value if name == "--gres" else f"gpu:{value}")
            yield from ((name, match[1] or match[2]) for match in found)


def _meant(word: str) -> list[str]:
    """The GPUs that a name may stand for: one, those that it begins (v100 has two sizes), or none; v100-32g is v100-32gb."""
    spend(1_000)  # an unknown one is compared with all
    word = re.sub(r"(?<=[0-9])[gG]$", "gb", word)
    try:
        return [load_gpu(word).id]
    except InputError:
        return _beginning(word)


def _beginning(word: str) -> list[str]:
    return [gpu for gpu in gpu_ids() if gpu.startswith(word.lower().replace("_", "-") + "-")]


def _others(gpu: str) -> str:
    """Its other sizes: a100-40gb beside a100-80gb."""
    kin = [one for one in _beginning(gpu.rpartition("-")[0]) if one != gpu and one.count("-") == gpu.count("-")]
    return f", not {' or '.join(kin)}" if kin else ""
