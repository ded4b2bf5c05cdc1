"""The arguments that a log of Megatron-LM prints at its start: the plan of the run, whole."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autoconfig.evidence.grammar import grammar
from autoconfig.evidence.records import DumpedPlan, Origin
from autoconfig.evidence.scan import Passage, scan
from autoconfig.specs.errors import InputError

_ARGUMENT = re.compile(
    r"^(?:\d{1,6}: |\[[^\]]{1,60}\]:? ?)?\s{0,8}(?:([A-Za-z]\w{1,80}) \.{1,60}|([A-Za-z]\w{46,80}) ) (.{0,2000})$"
)
"""Names of 48 characters and more have no dots behind them."""
HEAD = "------------------------ arguments ------------------------"
END = "-------------------- end of arguments ---------------------"
MARK = re.compile(r"-{4,60} arguments -{4,60}")
VOCABULARY = re.compile(r"> padded vocab \(size: (\d{1,9})\)")
"""What Megatron-LM says once it has built the tokenizer."""
OF_A_RUN = frozenset(
    (
        *("rank", "local_rank", "load", "save", "tensorboard_dir"),
        *("wandb_exp_name", "master_addr", "master_port", "iteration", "seed"),
    )
) | {
    *("consumed_train_samples", "consumed_valid_samples", "ckpt_step", "finetune"),
    *("train_iters", "log_interval", "exit_interval"),
}
"""Arguments that may differ where a run was started again."""


def is_dump(text: str) -> bool:
    """Whether a text prints arguments of Megatron-LM, with one of those that a plan has."""
    return MARK.search(text) is not None and re.search(r"\bnum_layers \.{2,60} ", text) is not None


def arguments(lines: Iterable[str]) -> dict[str, str]:
    """Name -> value as printed."""
    return {match[1] or match[2]: match[3].strip() for line in lines if (match := _ARGUMENT.match(line)) is not None}


def of_blocks(blocks: Iterable[Passage], file: str, vocabulary: int | None = None) -> DumpedPlan | None:
    """The plan that a log prints; of a run that was started again the last one. `vocabulary`: of the tokenizer, where the log
    says it and the arguments do not. Raises InputError where it prints two plans."""
    plan: DumpedPlan | None = None
    for block in blocks:
        values = arguments(raw.decode("utf-8", "replace") for _, raw in block.rows)
        if "num_layers" not in values:  # cut off before it: arguments stand in the order of their names
            continue
        if plan is not None:
            _require_same(plan, values, block.number, file)
        if vocabulary is not None and values.get("vocab_size", "None") == "None":
            values["vocab_size"] = str(vocabulary)
        body = "\n".join(f"  {name} {'.' * max(2, 48 - len(name))} {value}" for name, value in values.items())
        world = values.get("world_size", "")
        plan = DumpedPlan(
            origin=Origin(file=file, line=block.number, text=block.head.decode("utf-8", "replace").strip()[:200]),
            text=f"{HEAD}\n{body}\n{END}\n",
            world_size=int(world) if world.isdigit() and len(world) < 8 else None,
            values=values,
        )
    return plan


def _require_same(before: DumpedPlan, values: dict[str, str], line: int, file: str) -> None:
    names = [
        name
        for name in before.values.keys() & values.keys()
        if before.values[name] != values[name] and name not in OF_A_RUN and not name.endswith(("_path", "_dir", "_file"))
    ]
    if names:
        raise InputError(
            f"{file!r} prints two plans, at lines {before.origin.line} and {line}, which differ in "
            f"{', '.join(sorted(names)[:6])}: give the part of the log that is of one run"
        )


def read_plan(text: str, file: str = "log") -> DumpedPlan | None:
    """The plan that a text prints, None where it prints none. Raises InputError where it prints two."""
    if not any(row.record == "dump" for row in grammar().formats) or MARK.search(text) is None:
        return None
    padded = VOCABULARY.search(text)
    return of_blocks(scan([text.encode()]).blocks_of("dump"), file, int(padded[1]) if padded else None)
