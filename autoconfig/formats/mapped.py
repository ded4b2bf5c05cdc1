"""Formats that are maps (autoconfig.maps): a file's fields as a run and a plan, and a plan as a file of its fields.

The table says keys, values and what is refused; beside it stand, for those who read and write files of training:

    file = "train.toml"                # name under which it is written
    syntax = "toml"                    # or json, yaml
    software = "torchtitan"            # as which its trainer is priced
    no_model = "..."                   # what an error says where no model is named
    [says]                             # keys of a plan, values of numerics and options of a run that it has words for
    [wish]                             # plans that are proposed for it
    [ways]                             # its words for what may be changed beside the plan

What a table cannot say stands in `Hooks`, in a module of `formats/hooks/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from autoconfig.formats.record import Document, Spell, TrainerRun, model_named, record
from autoconfig.formats.words import Settings, Written, accumulation, catalogue_name, flat, foreign, head
from autoconfig.maps.read import Reading, read_entry, read_fields
from autoconfig.maps.table import Map, load_map, matches
from autoconfig.maps.tree import Section
from autoconfig.maps.write import json_text, toml_text, written, yaml_text
from autoconfig.megatron.check_input import CheckInput
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import Recompute, TrainPlan
from autoconfig.specs.remarks import Remark
from autoconfig.specs.scenario import Numerics, Scenario
from autoconfig.specs.software.optimizers import is_adam, other_state
from autoconfig.specs.software.software import StackOptions
from autoconfig.training.space import Constraints

SYNTAXES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {"json": json_text, "toml": toml_text, "yaml": yaml_text}


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the table of a format cannot say."""

    begin: Callable[[Document, Section, list[Remark]], dict[str, Any]] = lambda document, section, assumed: {}
    """Fields that are known before the table is read."""
    complete: Callable[[Reading, Document], None] = lambda reading, document: None
    """Work out fields from others; remarks. Raises InputError, UnsupportedError."""
    model_of: Callable[[Document, list[Remark]], ModelSpec] | None = None
    """The model of a file that says its sizes; None: the file names one."""
    model: Callable[[Any], str | None] = lambda name: name
    """The name of the model, of what its entry says."""
    finish: Callable[[Reading, TrainerRun], None] = lambda reading, run: None
    """What depends on the model."""
    words: Callable[[Reading], tuple[Spell, Constraints]] | None = None
    """The words for a plan in this file, and which plans it can say, where these differ from file to file."""
    shown: Callable[[Scenario, TrainPlan], TrainPlan] = lambda scenario, plan: plan
    """A plan without what stands elsewhere in that trainer."""
    written: Callable[[Scenario, TrainPlan, dict[str, Any]], None] = lambda scenario, plan, said: None
    """Work out the fields that are written."""
    settings: Callable[[Scenario, TrainPlan], Settings] = lambda scenario, plan: {}
    """Settings of the plan that stand elsewhere."""
    refused: Callable[[Scenario, TrainPlan], list[str]] = lambda scenario, plan: []
    """What the format has no words for."""
    comment: Callable[[Scenario], str] = lambda scenario: ""
    """Lines below the first comment."""
    unsaid: Callable[[Scenario, TrainPlan], list[str]] = lambda scenario, plan: []
    """What stands elsewhere in that trainer, or is lost."""


@dataclass(frozen=True, kw_only=True)
class MappedFormat:
    """A format that is a map."""

    name: str
    hooks: Hooks = Hooks()

    @property
    def table(self) -> Map:
        """The format's table."""
        return load_map(self.name)

    @property
    def software(self) -> str:
        """As which its trainer is priced."""
        return str(self.table.more["software"])

    @property
    def wish(self) -> Constraints:
        """Which plans it can say."""
        return wish_of(self.table)

    def read(self, document: Document) -> CheckInput:
        """Return the record of a file. Raises InputError, UnsupportedError."""
        section, assumed, more = document.section(), list[Remark](), list[Remark]()
        own = self.hooks.begin(document, section, more)
        model = self._model(document, section, assumed)
        start: dict[str, Any] = {"software": self.software, "gpus": None, "seq_length": document.request.seq_length}
        start["ways"] = self.table.more.get("ways", {})
        reading = read_fields(self.table, section, {**start, **own})
        reading.assumed = assumed = [*assumed, *more, *reading.assumed]
        self.hooks.complete(reading, document)
        name = reading.fields.get("optimizer_name", "")
        if name and "optimizer" not in reading.fields and not is_adam(name):
            reading.not_modelled.append(other_state(self.table.entry("optimizer_name").keys[0], name))
        run = TrainerRun(
            model=model,
            table=self.table,
            assumed=assumed,
            not_modelled=reading.not_modelled,
            **run_fields(reading.fields),
        )
        self.hooks.finish(reading, run)
        spell, wish = self.hooks.words(reading) if self.hooks.words is not None else (self.settings, self.wish)
        return record(document, run, section, spell, wish)

    def _model(self, document: Document, section: Section, assumed: list[Remark]) -> ModelSpec:
        """Return the model that the file names. Raises InputError."""
        if self.hooks.model_of is not None:
            return self.hooks.model_of(document, assumed)
        entry = next((entry for entry in self.table.entries if entry.name == "model"), None)
        name = None if entry is None else self.hooks.model(read_entry(entry, section))
        return model_named(document, name, assumed, **self.table.more.get("names", {}))

    def values(self, scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
        """Return the nested values of the file of a plan."""
        content = fields_of(scenario, plan)
        self.hooks.written(scenario, plan, content)
        return written(self.table, content)

    def settings(self, scenario: Scenario, plan: TrainPlan) -> Settings:
        """Return the values that depend on the plan, by path."""
        patterns = tuple(self.table.more["says"].get("settings", ["*"]))
        paths = flat(self.values(scenario, plan))
        own = {path: texts for path, texts in paths.items() if matches(patterns, path)}
        return {**own, **self.hooks.settings(scenario, plan)}

    def refused(self, scenario: Scenario, plan: TrainPlan) -> list[str]:
        """Return what the format has no words for."""
        says = self.table.more["says"]
        shown, packs = self.hooks.shown(scenario, plan), says.get("packs", False)
        odd = foreign(scenario, shown, says["keys"], says.get("numerics", {}), packs=packs, options=says.get("options", ()))
        return [*odd, *self.hooks.refused(scenario, plan)]

    def write(self, scenario: Scenario, plan: TrainPlan) -> Written:
        """Return the file of a plan."""
        syntax = self.table.more["syntax"]
        text = SYNTAXES[syntax](self.values(scenario, plan))
        top = "" if syntax == "json" else f"# {head(scenario, plan)}\n{self.hooks.comment(scenario)}"
        unsaid = tuple(self.hooks.unsaid(scenario, plan))
        return Written(file_name=self.table.more["file"], text=top + text, unsaid=unsaid)


def run_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a TrainerRun, of numerics and of options by their names; what a map has beside is its own."""
    own = {one.name for one in fields(TrainerRun)} - {"model", "numerics", "options"}
    arguments = {name: value for name, value in values.items() if name in own}
    if "recompute" in arguments:
        arguments["recompute"] = Recompute.parse(arguments["recompute"])
    numerics = {one.name for one in fields(Numerics)}
    options = {one.name for one in fields(StackOptions)}
    return {
        **arguments,
        "numerics": {name: value for name, value in values.items() if name in numerics},
        "options": StackOptions(**{name: value for name, value in values.items() if name in options}),
    }


def wish_of(table: Map) -> Constraints:
    """Return which plans a format can say."""
    fixed = {key: frozenset(values) for key, values in table.more.get("wish", {}).items()}
    if "recompute" in fixed:
        fixed["recompute"] = frozenset(map(Recompute.parse, fixed["recompute"]))
    return Constraints(fixed=fixed)


def fields_of(scenario: Scenario, plan: TrainPlan) -> dict[str, Any]:
    """Return what a plan says, in the names of maps."""
    keys = ("tp", "pp", "vpp", "cp", "ep", "etp", "sp", "dp", "dist_opt", "fsdp", "offload", "first", "last")
    return {
        **{key: getattr(plan, key) for key in keys},
        "dist_opt": plan.dist_opt and not plan.fsdp,
        **{one.name: getattr(scenario.numerics, one.name) for one in fields(Numerics)},
        "recompute": str(plan.recompute),
        "micro_batch": plan.mbs,
        "global_batch": scenario.workload.global_batch_size,
        "accumulation": accumulation(scenario, plan),
        "seq_length": scenario.workload.seq_length,
        "model": catalogue_name(scenario.model),
        "gpus": scenario.cluster.num_gpus,
        "nodes": scenario.cluster.num_nodes,
        "compile": bool(scenario.given.compile),
        "async_tp": bool(scenario.given.async_tp),
    }
