"""Runs of T5, mT5 and BERT: NeMo's published training and Megatron-LM's functional tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from validation.intake.repairs import Repairs

PLAN = ("tp", "pp", "vpp", "sp", "mbs", "gbs", "recompute")
GPUS_OF_A_TEST = 8
LOCAL = {"transformer_impl": "local"}


def rows(raw: Iterable[Mapping[str, str]], repairs: Repairs) -> Iterator[dict[str, str]]:
    """Yield the training runs of t5_bert.csv in the columns of a user's table of such runs."""
    table = list(raw)
    defaults = {row["model"]: row for row in table if row["kind"] == "size_default"}
    for row in table:
        if row["kind"] == "published_inference":
            continue
        cells = dict(row) | {"gpu": re.sub(r"\s*\(.*\)", "", row["gpu"])}
        usual = defaults.get(row["model"].lower())
        if not row["mbs"] and usual is not None:
            plan = {column: row[column] or usual[column] for column in (*PLAN, "seq_dec")}
            repairs.write("default-plan", cells, plan | {"precision": row["precision"] or "bf16"})
        if row["kind"] == "ci_golden":
            _functional_test(cells, repairs)
        else:
            cells["software"] = "nemo-t5-bert"
        cells |= {"sp": cells["sp"] or "0", "optimizer_shard": "none", "grad_dtype": "fp32"}
        yield cells


def _functional_test(cells: dict[str, str], repairs: Repairs) -> None:
    """Write how a test of Megatron-LM runs, by its name."""
    local = {} if re.search("^bert|_te_|release|11b", cells["model"]) else LOCAL
    gpus = str(max(GPUS_OF_A_TEST, int(cells["tp"]) * int(cells["pp"])))
    cells["software"] = "megatron-core"
    test = {"gpus": cells["gpus"] or gpus, "attention_kernel": "unfused", "peak_rank": "last", "deterministic": "1"}
    repairs.write("functional-test", cells, local | test)
