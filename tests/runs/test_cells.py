"""Cells of a table of runs: words, defaults, releases, and the reason of each that cannot be read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from autoconfig.specs.errors import InputError, PlanError
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.remarks import sentences
from autoconfig.specs.serve_plan import parse_serve_plan
from autoconfig.specs.software.software import load_stack
from tables import tabled

from autoconfig.runs.cells import RunRow
from autoconfig.runs.predict import COLUMNS, predict_rows
from autoconfig.runs.table import check_columns, read_csv
from autoconfig.runs.training_row import even_ends, read_case
from autoconfig.training.confidence import NO_RUNS, NOT_LEGAL, shipped_bands
from autoconfig.training.plan_rules import broken_rules
from autoconfig.training.question import Request, understand
from autoconfig.training.rules import RULE_TEXT
from validation.published import published_rows

ROWS = {row["id"]: row for row in published_rows()}
SAMPLE = [row for number, row in enumerate(ROWS.values()) if number % 61 == 0 and row["full_plan"] != "0"]


@pytest.mark.parametrize(("word", "same_as"), [("Causal", "causal"), ("hfu", "causal"), ("FULL", "full")])
def test_words_for_flops_conventions(word: str, same_as: str) -> None:
    row = next(row for row in SAMPLE if row["full_plan"] == "1")
    found, wanted = (predict_rows([{**row, "flops_convention": name}])[0] for name in (word, same_as))
    assert found.mfu == wanted.mfu is not None


@pytest.mark.parametrize(("change", "reason"), [
    ({"gpu": "TPUv4"}, "TPUv4"), ({"layers": ""}, "layers"), ({"hidden": "x"}, "hidden"), ({"precision": "int3"}, "precision"),
])  # fmt: skip
def test_rows_that_cannot_be_predicted_keep_their_line_with_the_reason(change: dict[str, str], reason: str) -> None:
    good = ROWS["KO-0002"]
    before, bad, after = predict_rows([good, good | {"model": "own"} | change, good])
    assert before.step_seconds == after.step_seconds is not None
    assert bad.step_seconds is None and bad.id == "KO-0002"
    assert reason in bad.note
    assert [cell for name, cell in bad.cells().items() if name not in ("id", "pred_note")] == [""] * (len(COLUMNS) - 2)


@pytest.mark.parametrize(
    ("key", "value"), [("mbs", "0"), ("optimizer_shard", "2\u00b3"), ("optimizer_shard", "9" * 400), ("hidden_dropout", "x")]
)
def test_an_odd_cell_costs_no_other_row(key: str, value: str) -> None:
    good = next(row for row in published_rows() if row["full_plan"] == "1" and row["status"] == "ran")
    first, second = predict_rows([{**good, "id": "odd", key: value}, {**good, "id": "good"}])
    assert (first.id, second.id) == ("odd", "good") and second.step_seconds


@tabled
def test_odd_cells_that_decide_the_plan_leave_the_row_empty_with_the_reason(key: str, value: str) -> None:
    found = predict_rows([ROWS["KO-0002"] | {key: value}])[0]
    assert found.step_seconds is None
    assert f"cell {key}=" in found.note and found.note.count(key) == 1


@pytest.mark.parametrize(("key", "value"), [("gpus_per_node", "5"), ("gpu_mem_gb", "77777"), ("flops_convention", "abc")])
def test_odd_cells_with_a_default_are_said(key: str, value: str) -> None:
    good, odd = predict_rows([ROWS["KO-0002"], ROWS["KO-0002"] | {key: value}])
    assert odd.step_seconds == good.step_seconds
    assert value in odd.note and key in odd.note and key not in good.note


def test_words_for_yes_and_no() -> None:
    on, yes, off, no = predict_rows([ROWS["KO-0003"] | {"sp": word} for word in ("1", "True", "0", "false")])
    assert on.step_seconds == yes.step_seconds != off.step_seconds == no.step_seconds


GOOD = {
    "id": "a", "model": "llama-13b", "gpu": "A100", "gpus": "64", "tp": "4", "sp": "1", "pp": "4", "vpp": "1", "cp": "1",
    "mbs": "1", "gbs": "128", "recompute": "none", "seq": "2048", "software": "megatron-core", "optimizer_shard": "dp",
    "full_plan": "1",
}  # fmt: skip


@tabled
def test_a_broken_rule_is_named_and_the_confidence_is_low(change: dict[str, str], rule: str) -> None:
    good, bad = predict_rows([GOOD, GOOD | change])
    assert "breaks" not in good.note and good.confidence is not None and good.confidence.level != NOT_LEGAL
    assert bad.confidence is not None and bad.step_seconds is not None, bad.note
    assert f"{rule} ({RULE_TEXT[rule]})" in bad.note
    assert bad.cells()["pred_confidence"] == NOT_LEGAL and "low" in NOT_LEGAL
    bands = [band for name, band in shipped_bands().items() if name not in NO_RUNS]
    assert bad.confidence.step_seconds_p5 == pytest.approx(bad.step_seconds * min(b.p5 for b in bands))
    assert bad.confidence.step_seconds_p95 == pytest.approx(bad.step_seconds * max(b.p95 for b in bands))


def test_stages_that_do_not_divide_break_one_rule() -> None:
    scenario = read_case(GOOD).scenario
    assert broken_rules(scenario, [parse_plan("tp=4,pp=8,vpp=2,dp=2,mbs=1,sp=1,first=3", 64)]) == [["NV024"]]


def test_published_uneven_stages_are_no_broken_rule() -> None:
    """94 layers over 8 x 2 chunks: embedding and loss count as layers (account_for_..._in_pipeline_split)."""
    row = {**GOOD, "model": "qwen3-235b-a22b", "gpu": "B200", "gpus": "64", "tp": "1", "sp": "0", "pp": "8", "vpp": "2"}
    assert "breaks" not in predict_rows([row | {"ep": "8", "etp": "1"}])[0].note


def test_blank_plan_cells_are_named_with_their_default() -> None:
    blank = predict_rows([GOOD | {"sp": "", "vpp": "", "cp": "", "recompute": ""}])[0]
    assert "sp on (tp is above 1), vpp 1, cp 1, recompute none" in blank.note
    whole = predict_rows([GOOD])[0].note
    assert not any(word in whole for word in ("sp on", "vpp 1", "cp 1", "recompute none"))


@tabled
def test_impossible_cells_leave_the_row_empty_with_the_reason(key: str, value: str) -> None:
    found = predict_rows([GOOD | {key: value}])[0]
    assert found.step_seconds is None and found.id == "a"
    assert f"cell {key}=" in found.note, found.note


@tabled
def test_impossible_shapes_leave_the_row_empty_with_the_reason(key: str, value: str) -> None:
    shape = {"model": "own", "layers": "40", "hidden": "5120", "heads": "40", "experts": "8", "topk": "2", "ffn": "13824"}
    found = predict_rows([{**GOOD, **shape, "sp": "1", key: value}])[0]
    assert found.step_seconds is None and found.note.startswith("not predicted")
    assert key in found.note and value in found.note, found.note


@tabled
def test_words_that_nobody_knows_are_said(column: str) -> None:
    found = predict_rows([GOOD | {column: "nonsense"}])[0]
    assert found.step_seconds is not None
    assert column in found.note and "'nonsense' is none of" in found.note


def test_published_words_are_known() -> None:
    assert not [row["id"] for row in published_rows() if row["offload"] != "activations" and _odd(row)]


def _odd(row: dict[str, str]) -> bool:
    return "is none of" in predict_note(row)


def predict_note(row: dict[str, str]) -> str:
    cells = RunRow("training", row)
    cells.assume_known_words()
    return ", ".join(sentences(cells.assumed))


def test_a_name_that_the_shape_contradicts_is_said() -> None:
    other, deep, same = predict_rows([
        GOOD | {"hidden": "8192", "heads": "64", "layers": "40"}, GOOD | {"layers": "48"},
        GOOD | {"hidden": "5120", "heads": "40"},
    ])  # fmt: skip
    assert "not llama-13b's (hidden 8192, not 5120, heads 64, not 40)" in other.note
    assert "llama-13b with layers 48, not 40" in deep.note
    assert "llama-13b with" not in same.note and "not llama" not in same.note


@pytest.mark.parametrize("text", ["tp=2 pp=2", "tp=2;pp=2", "tp = 2  pp = 2", "tp=2, pp=2 mbs=1"])
def test_a_short_form_without_commas_is_mended_in_the_message(text: str) -> None:
    with pytest.raises(PlanError, match=r"write it with commas: tp=2,\s?pp=2"):
        parse_plan(text, 4)


def test_a_serving_short_form_without_commas_is_mended_in_the_message(autoconfig: SimpleNamespace) -> None:
    with pytest.raises(PlanError, match="write it with commas: tp=2,batch=8"):
        parse_serve_plan("tp=2 batch=8")
    result = autoconfig.run("explain", "--model", "llama3-8b", "--gpus", "4", "tp=2 pp=2")
    assert result.exit_code == 2 and "write it with commas: tp=2,pp=2" in result.stderr


@pytest.mark.parametrize(("model", "pp", "ends"), [
    ("qwen3-235b-a22b", 8, (11, 11)),  # 94 layers and embedding and loss: 96 / 8
    ("llama3.1-405b", 8, (15, 15)),  # 126 and 2: 128 / 8
    ("deepseek-v3", 16, (4, 1)),  # Megatron-Bridge's layouts: 61 layers
    ("deepseek-v3", 4, (16, 13)),
    ("deepseek-v3", 8, (8, 5)),
    ("gpt3-175b", 8, (None, None)),
    ("deepseek-v3", 1, (None, None)),
])  # fmt: skip
def test_ends_of_uneven_stages(model: str, pp: int, ends: tuple[int | None, int | None]) -> None:
    assumed: list[str] = []
    assert even_ends(load_model(model), pp, assumed) == ends
    assert bool(assumed) == (ends[0] is not None)


@pytest.mark.parametrize(
    ("name", "priced_as"), [("nemo-26.02.01", "nemo-26.02"), ("nemo-26.05", "nemo-26.04"), ("nemo-27.01", "nemo-26.06")]
)
def test_a_release_without_a_file_is_priced_as_the_one_before_it(name: str, priced_as: str) -> None:
    stack, before = load_stack(name), load_stack(priced_as)
    assert (stack.name, stack.release, stack.time, stack.memory) == (name, name, before.time, before.memory)
    assert stack.description.endswith(f"priced as {priced_as}")


def test_a_point_release_may_be_written_without_its_zero() -> None:
    assert load_stack("NeMo-26.06.1") == load_stack("nemo-26.06.01") != load_stack("nemo-26.06.10")


@pytest.mark.parametrize("name", ["nemo-26.13", "nemo-26.00", "nemo-26.05.x", "nemo-26.x", "nemo-26.5"])
def test_what_is_no_date_is_no_release(name: str) -> None:
    with pytest.raises(InputError, match="unknown software stack"):
        load_stack(name)
    assert "unknown software stack" in predict_rows([GOOD | {"software": name}])[0].note


def test_a_question_on_an_unknown_release_has_the_settings_of_the_one_before_it_and_says_so() -> None:
    asked = {"model": "qwen3-30b-a3b", "gpu": "h100", "gpus": 16}
    unknown, before = (understand(Request(software=name, **asked)) for name in ("nemo-26.07", "nemo-26.06.01"))
    assert unknown.scenario.settings() == before.scenario.settings()
    assert any("of which nothing is known here, priced as nemo-26.06" in text for text in sentences(unknown.assumed))
    row = {**SHORT, "model": "qwen3-30b-a3b", "ep": "8", "tp": "1"}
    first, second = predict_rows([{**row, "software": name} for name in ("nemo-26.07", "nemo-26.06.01")])
    assert first.step_seconds == second.step_seconds and "of which nothing is known" in first.note


SHORT = {"model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": "16", "seq": "8192", "gbs": "1024", "tp": "2", "mbs": "1"}


def test_numbers_are_read_as_options_read_them() -> None:
    plain, *written = predict_rows([SHORT, {**SHORT, "seq": "8k"}, {**SHORT, "seq": "8,192"}, {**SHORT, "gbs": "1,024"}])
    assert plain.step_seconds and {one.step_seconds for one in written} == {plain.step_seconds}


@pytest.mark.parametrize(("change", "said"), [
    ({"tp": "3"}, "tp x pp x cp is 3, which does not divide the 16 GPUs (NV001)"),
    ({"model": "lama3-8b"}, "unknown model 'lama3-8b'; did you mean llama3-8b"), ({"model": "175"}, "unknown model '175'"),
    ({"gpus": "256,512"}, "may be several counts"), ({"gbs": "1k"}, "cell gbs='1k' is not a number"),
    ({"seq": "8,19"}, "cell seq='8,19' is not a number"), ({"seq": "xk"}, "cell seq: 'xk' is no integer"),
])  # fmt: skip
def test_the_reason_names_what_is_wrong(change: dict[str, str], said: str) -> None:
    (found,) = predict_rows([{**SHORT, **change}])
    assert found.step_seconds is None and found.note.startswith("not predicted: ") and said in found.note


def test_a_mixture_of_no_known_name_has_gated_experts() -> None:
    """The shape of Grok-1 (314B, github.com/xai-org/grok-1) by its columns; a name with `gpt` keeps Megatron's own MLP."""
    cells = "layers=64 hidden=6144 heads=48 kv_heads=8 ffn=32768 vocab=131072 experts=8 topk=2 seq=8192 gpu=h100 gpus=512 tp=8"
    shape = dict(pair.split("=") for pair in f"{cells} pp=8 ep=8 mbs=1 gbs=1024".split())
    grok, gpt, dense = (
        read_case(shape | change)
        for change in ({"model": "grok-1"}, {"model": "gpt-moe"}, {"model": "own", "experts": "", "topk": "", "ep": "1"})
    )
    assert total_parameters(grok.scenario.model) / 1e9 == pytest.approx(314, rel=0.015)
    assert not grok.scenario.model.add_bias_linear and any("gated experts" in text for text in sentences(grok.assumed))
    assert not any("gated experts" in text for case in (gpt, dense) for text in sentences(case.assumed))
    assert not gpt.scenario.model.gated_linear_unit and not dense.scenario.model.gated_linear_unit


@pytest.mark.parametrize(
    ("cells", "imbalance"),
    [({}, None), ({"moe_routing": "balanced"}, 1.0), ({"moe_imbalance": "1.4"}, 1.4), ({"moe_routing": "dropless"}, None)],
)
def test_routing_is_real_where_a_row_does_not_say_that_it_is_forced(cells: dict[str, str], imbalance: float | None) -> None:
    row = {"id": "x", "model": "qwen3-30b-a3b", "gpu": "h100", "gpus": "8", "ep": "8", "mbs": "1", "gbs": "64", "seq": "4096"}
    case = read_case({**row, "software": "nemo-26.04", **cells})
    assert case.scenario.numerics.moe_imbalance == imbalance
    said = [one for one in case.assumed if one.field == "moe_imbalance"]
    assert [one.value for one in said] == ([case.scenario.software.time.moe_imbalance] if imbalance is None else [])
    assert case.scenario.software.time.moe_imbalance > 1


def test_headers_are_read_whatever_their_case_and_blanks(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("Model, GPU ,GPUS,Metric_Step_S\nllama3-8b,h100,8,12\n", encoding="utf-8")
    assert read_csv(table) == (["model", "gpu", "gpus", "metric_step_s"],
                               [{"model": "llama3-8b", "gpu": "h100", "gpus": "8", "metric_step_s": "12"}])  # fmt: skip
    check_columns(table, ["model", "gpu"], ("model", "gpu"), "see the table that ships")
    with pytest.raises(InputError, match="lacks the columns gpus; is 'gpuss' its gpus"):
        check_columns(table, ["model", "gpuss"], ("model", "gpus"), "see the table that ships")
    with pytest.raises(InputError, match="the columns gpu twice"):
        table.write_text("gpu,GPU\nh100,h100\n", encoding="utf-8")
        check_columns(table, read_csv(table)[0], ("gpu",), "")
