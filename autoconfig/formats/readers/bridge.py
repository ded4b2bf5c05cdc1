"""Overrides of Megatron-Bridge and NeMo-2 recipes: `key=value`, one a line or behind the command that starts the recipe
(data/maps/bridge.toml).

What a recipe sets itself is known for the published ones (autoconfig/data/bridge_recipes.csv); of others every value
that a plan needs must be among the overrides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile, zip_longest

from autoconfig.formats.argument_names import argument_name
from autoconfig.formats.bridge_recipes import row_of
from autoconfig.formats.options import is_override, overrides_of, read_command
from autoconfig.formats.readers.megatron_words import (
    DEPTHS,
    SIZES,
    SWITCHES,
    field_words,
    names_in,
    require_values,
    with_sizes,
    with_unread,
    words_of,
)
from autoconfig.formats.record import Document, from_words, model_named, other_optimizer, with_lora
from autoconfig.formats.words import Header, header_of
from autoconfig.formats.writers.bridge import settings
from autoconfig.maps.read import read_fields
from autoconfig.maps.table import load_map
from autoconfig.maps.tree import Section
from autoconfig.megatron.check_input import CheckInput
from autoconfig.megatron.shell.commands import Value, plain_value, reason_of, text_of, unknown
from autoconfig.megatron.shell.script import Script
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.remarks import Remark, note
from autoconfig.specs.software.software import DEFAULT_STACK
from autoconfig.training.numerics import usual_dropout
from autoconfig.training.question import Question

BRIDGE = load_map("bridge")
Row = Mapping[str, str]
"""What a recipe sets: column of the table of recipes -> value."""
RECIPE = ("--recipe", "--factory", "--model-recipe", "--recipe_name", "--model")
SCHEME = ("--peft_scheme", "--peft-scheme", "--peft")
OF_MODEL = ("vocab_size", DEPTHS)
"""Fields that change the model, beside its sizes."""
ROLES = ("sft", "peft", "finetune", "low", "precision", "config", "recipe")
"""Words of a recipe's name behind the model's."""
EXPERTS = "expert_tensor_parallel_size"
"""How experts are divided: most of Bridge's recipes set 1, where megatron-core's default is tensor parallelism."""
DISPATCHER, BACKEND = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"
USUAL_DISPATCHER = "alltoall"
"""What Bridge's own providers of mixtures set (megatron/bridge/models/), where megatron-core's default is allgather; recipes
that differ say flex."""
UNKNOWN_RECIPE = "not known: what it sets and no override says (recomputation, stages, precision) counts as Megatron's defaults"


def read(document: Document) -> CheckInput:
    """The record. GPUs: trainer.devices x trainer.num_nodes, else the launcher's, else the recipe's. Raises InputError."""
    head = header_of(document.text)
    document = _on_its_gpus(document, head)
    words, script = _command(document) if document.values is None else ([], None)
    options = _options(words)
    recipe = _recipe_of(options, document.text)
    overrides = document.values if document.values is not None else {**_told(options), **overrides_of(words)}
    section = Section(overrides, document.text, document.request.settings)
    row = row_of(recipe)
    notes: list[Remark] = []
    unnamed = f"the overrides name no recipe{_settings_file(options)}"
    model = model_named(document, _model_of(recipe, document.text), notes, unnamed)
    if document.request.model is not None:  # the recipe's: what the overrides change of it holds
        document, notes = replace(document, request=replace(document.request, model=None, like=None)), []
    fields = _fields(section)
    _add_recipe(fields, row)
    _require_plan(fields, recipe)
    model = with_sizes(model, words_of(fields, names_in(fields)), fields)
    model = model.replace(vocab_size=fields.count("vocab_size") or model.vocab_size)
    notes += _add_usual(fields, row, model)
    arguments = _arguments(fields, section)
    gpus, node = _counts(section, script, head, row)
    answer = from_words(document, arguments, gpus, node=node, model=model, spell=settings, software=DEFAULT_STACK)
    if recipe and not row and EXPERTS not in fields.flat and model.num_moe_experts and answer.plan.tp > 1:
        raise InputError(_not_said(EXPERTS, recipe))
    answer = _with_adapters(answer, section, recipe, _chosen(options, SCHEME).lower())
    question = _packed(answer.question, section, head)
    new = [Remark("recipe", recipe, UNKNOWN_RECIPE)] if recipe and not row else []
    question = replace(question, assumed=(*notes, *question.assumed, *new))
    answer = replace(answer, question=question, notes=script.notes if script is not None else ())
    return with_unread(answer, section, BRIDGE, section.unused())


def _on_its_gpus(document: Document, head: Header | None) -> Document:
    """The document on the GPU that its header names, where the request names none."""
    if head is None or document.request.gpu or document.request.cluster:
        return document
    return replace(document, request=replace(document.request, gpu=head.gpu))


def _command(document: Document) -> tuple[list[Value], Script | None]:
    """(words, the script) of a list of overrides or of a script."""
    parts = _parts(document.text)
    if all(map(is_override, parts)):
        return [plain_value(part) for part in parts], None
    pattern = r"(?:--recipe|--factory|-[a-z]{2,3}|(?:model|train|trainer|data|dataset|ddp|optimizer|checkpoint|logger|log)\..*)"
    decisive = frozenset(
        {"model.tensor-model-parallel-size", "trainer.strategy.tensor-model-parallel-size", "--recipe", "--factory"}
    )
    script = read_command(document.text, document.request.settings, "Megatron-Bridge", decisive, pattern)
    return [*map(plain_value, script.before), *script.argv], script


def _parts(text: str) -> list[str]:
    """The words of all lines that are no comments."""
    lines = (line.strip() for line in text.splitlines())
    return [part for line in lines if not line.startswith("#") for part in line.split()]


def is_list(text: str) -> bool:
    """Whether every line that is no comment is `path.key=value`, with a dot in one of the paths."""
    parts = _parts(text)
    return bool(parts) and all(map(is_override, parts)) and any("." in part.partition("=")[0] for part in parts)


def _options(words: Sequence[Value]) -> dict[str, Value]:
    """Option -> its value, of `--name value` and `--name=value`."""
    options: dict[str, Value] = {}
    for word, behind in zip_longest(words, words[1:]):
        name, equals, joined = text_of(word).partition("=")
        value = unknown(joined, reason_of(word)) if equals else behind
        if name.startswith("-") and value is not None:
            options[name] = value
    return options


def _chosen(options: Mapping[str, Value], names: Sequence[str]) -> str:
    """The value of the first of these options that is there; empty where none is. Raises InputError where it is not known."""
    name = next((name for name in names if name in options), "")
    if name and (reason := reason_of(options[name])):
        raise InputError(f"{name} is not known: {reason}")
    return text_of(options[name]) if name else ""


def _recipe_of(options: Mapping[str, Value], text: str) -> str:
    """The recipe that the command names, or one that is not read does, without a call's arguments. Raises InputError."""
    others = _options([plain_value(part) for part in _parts(text)])
    name = _chosen(options, RECIPE) or _chosen(others, RECIPE[:-1])
    return "".join(takewhile(lambda letter: letter.isalnum() or letter in "_.-", name.strip("'\"")))


def _told(options: Mapping[str, Value]) -> dict[str, object]:
    """Overrides that run_recipe.py's own options stand for."""
    columns = {**BRIDGE.more["recipe"], **BRIDGE.more["options"]}
    short = {f"-{column}": key for column, key in columns.items()}
    long = {f"--{key}": key for key in columns.values()}
    fields = {name: short.get(name) or long.get(f"--{name[2:].replace('-', '_')}") for name in options}
    return overrides_of([(*plain_value(f"model.{key}="), *options[name]) for name, key in fields.items() if key])


def _model_of(recipe: str, text: str) -> str | None:
    """The name of the model that the recipe is called after or that a comment says."""
    if not recipe:
        comment = "# model: "
        return next((line.removeprefix(comment) for line in text.splitlines() if line.startswith(comment)), None)
    name = recipe.replace("-", "_").split("_")
    words = list(takewhile(lambda word: not word.startswith("pretrain") and not word.endswith("gpu"), name))
    while words and words[-1] in ROLES:
        words.pop()
    return "-".join(words) or None


def _field_of(path: str) -> str:
    """The field of the map that stands at a path; empty where none does."""
    holder, _, key = path.rpartition(".")
    is_held = holder in BRIDGE.more["holders"] and (key in _plain() or key in _switched() or _is_size(key))
    return BRIDGE.more["elsewhere"].get(path, key if is_held else "")


@cache
def _switched() -> frozenset[str]:
    """Fields that the map reads."""
    return frozenset(key for entry in BRIDGE.entries for key in entry.keys)


@cache
def _plain() -> frozenset[str]:
    """Fields that are handed on as arguments of the same name."""
    return frozenset({*BRIDGE.more["passed"], *BRIDGE.more["recipe"].values()}) - _switched()


def _is_size(key: str) -> bool:
    """Whether a field changes the model."""
    return argument_name(key) in SIZES or key in SWITCHES


def _fields(section: Section) -> Section:
    """What the overrides say of the fields of the map: of several places the first of its holders that has a value."""
    fields = Section({}, section.text, {})
    order = {holder: at for at, holder in enumerate(BRIDGE.more["holders"])}
    for path in sorted(section.flat, key=lambda path: order.get(path.rpartition(".")[0], len(order))):
        if (key := _field_of(path)) and fields.flat.get(key) is None:
            value = section.get(path)
            fields.flat[key] = value.removeprefix("torch.") if isinstance(value, str) else value
            fields.own_words[key] = path
    return fields


def _add_recipe(fields: Section, row: Row) -> None:
    """What the recipe sets and no override says; what a plan needs it says, too, where an override takes it away."""
    needed = BRIDGE.more["needed"]
    for column, key in BRIDGE.more["recipe"].items():
        text = row.get(column) or ("1" if column == "cp" else "")
        if text and (key not in fields.flat or (key in needed and fields.flat[key] is None)):
            fields.flat[key] = {"True": True, "False": False}.get(text, text)
    if not fields.flat.get("recompute_granularity") and "recompute_modules" not in fields.own_words:
        fields.flat.pop("recompute_modules", None)
    is_sharded = fields.flag("sequence_parallel") and fields.word("tensor_model_parallel_size") != "1"
    if row and fields.flag("tp_comm_overlap") and not is_sharded:
        fields.flat["tp_comm_overlap"] = False  # a recipe's is dropped where it cannot run


def _require_plan(fields: Section, recipe: str) -> None:
    """Raises InputError where neither the overrides nor the recipe say what a plan needs."""
    for key in BRIDGE.more["needed"]:
        if fields.word(key) is None:
            raise InputError(_not_said(key, recipe))


def _not_said(key: str, recipe: str) -> str:
    where = f"recipe {recipe} is not among the published ones that are known, and " if recipe else ""
    return f"{where}{key} is not among the overrides: add it, or say --set model.{key}=N"


def _add_usual(fields: Section, row: Row, model: ModelSpec) -> list[Remark]:
    """The dropouts, which the providers of Bridge's models take from the model, and the dispatcher of a mixture, where the
    overrides do not say them, and what that assumes."""
    for key in ("attention_dropout", "hidden_dropout"):
        if fields.flat.get(key) is None:
            fields.flat[key] = usual_dropout(model)
    if not model.is_moe or DISPATCHER in fields.flat:
        return []
    fields.flat[DISPATCHER] = name = row.get("disp") or USUAL_DISPATCHER
    if name == "flex" and row.get("backend"):
        fields.flat.setdefault(BACKEND, row["backend"])
    remark = Remark("dispatcher", name, f"as Bridge's mixtures have it: no override says model.{DISPATCHER}")
    return [] if row.get("disp") else [remark]


def _arguments(fields: Section, section: Section) -> list[Value]:
    """Arguments of Megatron-LM, without those of the model's sizes."""
    plain = {key: argument_name(key) for key in _plain() if not _is_size(key) and key not in OF_MODEL}
    require_values(fields, plain)
    switched = read_fields(BRIDGE, fields).fields
    other = other_optimizer(section, "optimizer.optimizer", "optim.config.optimizer")
    return [*field_words({**switched, "--optimizer": other}), *words_of(fields, plain)]


def _counts(section: Section, script: Script | None, head: Header | None, row: Row) -> tuple[int | None, int | None]:
    """(GPUs, those of a node): what the overrides say, the launcher starts, or the header or the recipe is for."""
    recipes_own = head.gpus if head else int(row["gpus"]) if row.get("gpus") else None
    devices, nodes = section.count("trainer.devices"), section.count("trainer.num_nodes")
    gpus = devices * nodes if devices and nodes else _started(script) or recipes_own
    return gpus, devices or (script.gpus_per_node if script is not None and _started(script) else None)


def _packed(question: Question, section: Section, head: Header | None) -> Question:
    """The question of samples that are packed from sequences of a length that the header of a file of ours says."""
    if not (head and head.packed_length and section.has("dataset.packed_sequence_specs.packed_sequence_size")):
        return question
    length, scenario = head.packed_length, question.scenario
    scenario = replace(scenario, workload=replace(scenario.workload, packed_length=length))
    remark = note(f"packed from sequences of {length:,} tokens, as the header says")
    return replace(question, scenario=scenario, assumed=(*question.assumed, remark))


def _started(script: Script | None) -> int | None:
    """GPUs of a launcher that starts several: a program alone may start the others itself."""
    return script.num_gpus if script is not None and script.num_gpus != 1 else None


def _with_adapters(answer: CheckInput, section: Section, recipe: str, scheme: str) -> CheckInput:
    """With LoRA's fields (megatron/bridge/peft/lora.py). Raises InputError for adapters whose rank is not said, and for recipes
    of fine-tuning that train adapters where nobody says otherwise."""
    rank, targets = section.count("peft.dim"), section.get("peft.target_modules")
    section.get("peft.alpha")
    whole = scheme in ("none", "null") or section.word("peft") in ("none", "null")
    if rank is None:
        adapters = targets is not None or scheme or any(part in recipe for part in ("_peft", "lora", "_finetune"))
        if adapters and not whole:
            raise InputError(
                "the adapters' rank is not among the overrides: add peft.dim=N, or say --set peft.dim=N (--set peft=none where "
                "all weights are trained)"
            )
        return answer
    return with_lora(answer, rank, targets, "peft.dim")


def _settings_file(options: Mapping[str, Value]) -> str:
    """The file of settings that a command of Hydra names, which the overrides change."""
    name = text_of(options.get("--config-name", ())).removesuffix(".yaml")
    return f", but settings of {name[:60]}.yaml (--config-name): give that file, or" if name else ""
