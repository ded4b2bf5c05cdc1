"""Which keys and flags each release of a post-training framework takes: writes autoconfig/data/post_training_keys.json.

python -m validation.distil.post_training_keys FOLDER NEMO_RL.git, where FOLDER holds unpacked wheels: verl-0.9.1, ...,
trl-1.16.0, ..., transformers-5.23, ..., openrlhf-0.11.2, ..., slime-0.3.1, .... Names, and the
types of NeMo-RL's values, nothing else.

NEMO_RL_PATH=SOURCE_OF_THE_RELEASE .venv-judge-rl/bin/python -m validation.distil.post_training_keys writes which fields of
NeMo-RL's MasterConfig are required, and their types, into the same file.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema

from validation.judge.post_training import nemo_rl_master_config

TARGET = Path(__file__).resolve().parents[2] / "autoconfig" / "data" / "post_training_keys.json"
VERL = ("0.4.1", "0.5.0", "0.6.1", "0.7.0", "0.8.0", "0.9.1")
NEMO_RL = ("0.4.0", "0.5.0", "0.6.0", "0.7.0")
TRL = {"0.16.1": "4.50.3", "0.19.1": "4.57.1", "0.24.0": "4.57.1", "1.16.0": "5.23"}
"""Each with a release of transformers of its time."""
OPENRLHF = ("0.5.9", "0.6.4", "0.7.5", "0.8.11", "0.9.10", "0.11.2")
SWIFT = {"3.12.0": "5.23", "4.6.0": "5.23"}
"""Each with a release of transformers of its time."""
SLIME = ("0.1.0", "0.2.4", "0.3.1")
ENTITIES = ("actor", "critic")
"""Of which OpenRLHF's parser adds options in a loop (`f"--{prefix}.adam.lr"`)."""


NEMO_RL_SOURCE = "examples/configs of NVIDIA-NeMo/RL at the release tags: GRPO and DAPO configurations"
OPENRLHF_SOURCE = "openrlhf/cli/train_ppo_ray.py of the releases, of 0.5 train_ppo.py too"
SWIFT_SOURCE = "arguments, trainers and rlhf_trainers of ms-swift's wheels, TrainingArguments of transformers 5.23"
TRL_SOURCE = "GRPOConfig, ModelConfig, ScriptArguments of the releases, TrainingArguments of transformers 4.50.3, 4.57.1, 5.23"


def leaves(values: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything that is no mapping, and of empty mappings."""
    for key, value in values.items():
        path = f"{before}{key}"
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}.")
        elif not str(key).startswith("_target_"):
            yield path, value


def bits(sets: Iterable[set[str]]) -> dict[str, str]:
    """Name -> one digit a release, 1 where it is there."""
    every = list(sets)
    return {name: "".join(str(int(name in one)) for one in every) for name in sorted(set().union(*every))}


def verl(folder: Path, back_end: str, version: str) -> set[str]:
    """Leaf keys of the trainer's configuration with this back end."""
    config = folder / f"verl-{version}" / "verl" / "trainer" / "config"
    name = "ppo_megatron_trainer.yaml" if back_end == "megatron" else "ppo_trainer.yaml"
    generated = config / f"_generated_{name}"
    text = (generated if generated.exists() else config / name).read_text(encoding="utf-8")
    usual = yaml.safe_load((config / "ppo_trainer.yaml").read_text(encoding="utf-8"))["defaults"]
    groups = {name for one in usual if isinstance(one, dict) for name in one if name.isidentifier()}  # model_engine=megatron
    return groups | {path for path, _ in leaves(yaml.safe_load(text))}


def nemo_rl(repository: Path, version: str) -> dict[str, str]:
    """Keys that the shipped GRPO configurations of a release use, with the type of the base configuration's value."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True, check=True).stdout

    kinds: dict[str, str] = {}
    names = git("ls-tree", "-r", "--name-only", f"v{version}", "examples/configs").split()
    files = [n for n in names if re.search(r"(grpo|dapo)[^/]*\.yaml$", n)]
    base = "examples/configs/grpo_math_1B.yaml"
    for name in [*[n for n in files if n != base], base]:
        for path, value in leaves(yaml.safe_load(git("show", f"v{version}:{name}")) or {}):
            if name == base or path not in kinds:
                kinds[path] = type(value).__name__ if name == base and not str(value).startswith("$") else ""
    declared = git("grep", "-hE", r"^    \w+: ", f"v{version}", "--", "nemo_rl").splitlines()
    return {path: _number_of(path, declared) if kind == "int" else kind for path, kind in kinds.items()}


def _number_of(path: str, declared: list[str]) -> str:
    """Kind of a field whose configured value is an integer: 1 may be of a field that holds 1.5."""
    same = [line.split("#")[0] for line in declared if line.split(":")[0].strip() == path.rpartition(".")[2]]
    return "float" if same and all("float" in line for line in same) else "int"


def fields(path: Path, *classes: str) -> set[str]:
    """Annotated fields of dataclasses of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            names |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    return names


def openrlhf(folder: Path, version: str) -> set[str]:
    """Flags of train_ppo_ray, and of train_ppo while there was one (0.5)."""
    scripts = [path.read_text(encoding="utf-8") for path in sorted((folder / f"openrlhf-{version}").rglob("train_ppo*.py"))]
    flags = re.findall(r"add_argument\(\s*f?\"--([\w.{}]+)\"", "\n".join(scripts))
    return {flag.replace("{prefix}", entity) for flag in flags for entity in ENTITIES}


def slime(folder: Path, version: str) -> set[str]:
    """slime's own arguments, without those of Megatron-LM and SGLang."""
    text = (folder / f"slime-{version}" / "slime" / "utils" / "arguments.py").read_text(encoding="utf-8")
    flags = re.findall(r"(?:add_argument|reset_arg)\((?:\s*parser,)?\s*\"--([\w-]+)\"(?=(.{0,90}))", text, re.DOTALL)
    names = {name.replace("-", "_") for name, _ in flags}
    return names | {f"no_{name.replace('-', '_')}" for name, rest in flags if "BooleanOptionalAction" in rest}


def swift(folder: Path, version: str) -> set[str]:
    """Annotated fields of ms-swift's arguments of rlhf, with those of transformers."""
    at = folder / f"ms-swift-{version}" / "swift"
    places = ("arguments", "trainers/arguments.py", "rlhf_trainers/arg*.py", "llm/argument", "trainers/rlhf_arguments.py")
    files = [file for place in places for file in sorted(at.glob(place if place.endswith(".py") else f"{place}/**/*.py"))]
    names = fields(folder / f"transformers-{SWIFT[version]}" / "transformers" / "training_args.py", "TrainingArguments")
    for file in files:
        kinds = [node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
        names |= fields(file, *kinds)
    return names


def trl(folder: Path, version: str) -> set[str]:
    """Fields that `trl grpo` takes."""
    at = folder / f"trl-{version}" / "trl"
    arguments = folder / f"transformers-{TRL[version]}" / "transformers" / "training_args.py"
    names = fields(at / "trainer" / "grpo_config.py", "GRPOConfig") | fields(arguments, "TrainingArguments")
    base = at / "trainer" / "base_config.py"
    names |= fields(base, "_BaseConfig") if base.exists() else set()
    names |= fields(at / "trainer" / "model_config.py", "ModelConfig")
    names |= fields(at / "scripts" / "utils.py", "ScriptArguments", "DatasetMixtureConfig")
    return names | fields(at / "scripts" / "grpo.py", "GRPOScriptArguments")


def releases(source: str, versions: Iterable[str], **keys_of: Callable[[str], set[str]]) -> dict[str, Any]:
    """What is written of a framework: its source, releases, and which keys each of them has, by back end."""
    digits = {name: bits(map(keys, versions)) for name, keys in keys_of.items()}
    return {"source": source, "versions": list(versions), **digits}


def main(folder: Path, repository: Path) -> None:
    """Write the file."""
    nemo = {version: nemo_rl(repository, version) for version in NEMO_RL}
    before = json.loads(TARGET.read_text(encoding="utf-8"))["nemo-rl"]
    data = {
        "about": "Keys of releases, a digit a release: 1 where it has the key. By validation/distil/post_training_keys.py",
        "verl": releases(
            "verl/trainer/config of the wheels",
            VERL,
            megatron=partial(verl, folder, "megatron"),
            fsdp=partial(verl, folder, "fsdp"),
        ),
        "nemo-rl": {
            **releases(NEMO_RL_SOURCE, NEMO_RL, any=lambda version: set(nemo[version])),
            **{key: value for key, value in before.items() if key.startswith("required")},
            "types": {key: kind for key, kind in sorted(nemo[NEMO_RL[-1]].items()) if kind},
        },
        "trl": releases(TRL_SOURCE, TRL, any=partial(trl, folder)),
        "openrlhf": releases(OPENRLHF_SOURCE, OPENRLHF, any=partial(openrlhf, folder)),
        "swift": releases(SWIFT_SOURCE, SWIFT, any=partial(swift, folder)),
        "slime": releases("slime/utils/arguments.py of THUDM/slime at the release tags", SLIME, any=partial(slime, folder)),
    }
    write(data)


def write(data: dict[str, Any]) -> None:
    """Write the file that ships."""
    TARGET.write_text(json.dumps(data, indent=0) + "\n", encoding="utf-8")


KINDS = {"integer": "int", "number": "float", "boolean": "bool", "string": "str"}


class Described(GenerateJsonSchema):
    """What has no JSON Schema (callables) is any value."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        """Schema of a part that JSON cannot hold."""
        return {}


def required(node: Mapping[str, Any], known: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, type; empty where several are allowed) of required fields that hold no required fields themselves."""
    while "$ref" in node:
        node = known[node["$ref"].rsplit("/", 1)[1]]
    for name in node.get("required", []):
        field = node["properties"][name]
        inner = list(required(field, known, f"{before}{name}."))
        yield from inner or [(f"{before}{name}", KINDS.get(field.get("type", ""), ""))]


def write_required(root: Path) -> None:
    """Write the required fields of the release whose source is `root` into the file."""
    schema = nemo_rl_master_config(root).model_json_schema(schema_generator=Described)
    data = json.loads(TARGET.read_text(encoding="utf-8"))
    data["nemo-rl"]["required"] = dict(sorted(required(schema, schema["$defs"])))
    data["nemo-rl"]["required_source"] = "MasterConfig of nemo_rl/algorithms/grpo.py of NVIDIA-NeMo/RL at v0.7.0"
    write(data)


if __name__ == "__main__":
    if "NEMO_RL_PATH" in os.environ:
        write_required(Path(os.environ["NEMO_RL_PATH"]))
    else:
        main(*(Path(word) for word in sys.argv[1:3]))
