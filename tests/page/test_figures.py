"""Figures of the page are those of the command line's JSON, by one rule of rounding."""

import pytest
from autoconfig.specs.errors import chance_text

from autoconfig.planning.money import money_text
from tests.page.conftest import command, go

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("page")]


QUESTIONS = [
    *({"view": "plans", "gpu": "h100-sxm-80gb", **more} for more in (
        {"model": "llama3-8b", "gpus": 8},
        {"model": "llama3-8b", "gpus": 32, "precision": "fp8", "tokens": "1T", "price": 2.5},
        {"model": "llama3-70b", "gpus": 128, "sort_by": "memory", "top": 5},
        {"model": "qwen2.5-14b", "gpus": 24, "gpu": "a100-80gb", "global_batch_size": 120},
        {"model": "mixtral-8x7b", "gpus": 64, "dispatcher": "deepep", "moe_imbalance": 1.5, "top": 3},
        {"model": "qwen3-30b-a3b", "gpus": 32, "gpu": "h200-sxm-141gb", "cuda_graphs": "none", "ep_overlap": "on", "top": 3},
        {"model": "llama3-8b", "gpus": 2, "peft": "lora", "lora_rank": 64, "seq_length": "1k"},
        {"model": "llama3-70b", "gpus": 64, "fit_chance": "99%", "fix": "tp=8", "max": "mbs=2"},
        {"model": "13b", "gpus": 16, "gpu": "b200-180gb", "software": "nemo-26.06", "memory_margin": 0.1},
    )),
    *({"view": "deployments", "gpu": "h100-sxm-80gb", **more} for more in (
        {"model": "llama3-8b", "gpus": 1, "isl": 1000, "osl": 100},
        {"model": "llama3-70b", "gpus": 8, "isl": 2000, "osl": 300, "tpot": "50ms", "engine": "vllm"},
        {"model": "llama3-8b", "gpus": 4, "rate": 3, "goal": "gpus", "ttft": "1s"},
        {"model": "qwen2.5-14b", "gpus": 2, "goal": "cost", "price": 3},
        {"model": "llama3-8b", "gpus": 2, "isl": 500, "osl": 200, "isl_stddev": 200, "tpot_p99": "40ms"},
    )),
    *({"view": "scaling", "model": "llama3-8b", "gpu": "h100-sxm-80gb", "gpus": 16, "counts": "8:64", **more} for more in (
        {"tokens": "100B", "days": 20}, {"types": "h100-sxm-80gb,b200-180gb", "price": 3, "tokens": "1T"},
    )),
    {"view": "budget", "model": "llama3-8b", "money": "50k", "days": 20, "tokens": "20B", "offers": "h100=2.2 b200=4.5"},
    {"view": "budget", "model": "llama3-70b", "money": "100", "days": 1},
    *({"view": "post-training", "model": "qwen2.5-7b", "gpu": "h100-sxm-80gb", **more} for more in (
        {"gpus": 8, "prompts": 64, "group_size": 8, "response_length": 500},
        {"gpus": 4, "algorithm": "dpo", "framework": "trl"},
    )),
]  # fmt: skip
COMMANDS = {"plans": "search", "deployments": "deployments", "scaling": "scaling", "budget": "budget", "post-training": "rl"}


def as_seconds(value):
    """The page's rule for a time: three digits behind the point in seconds and milliseconds."""
    if value < 1e-3:
        return f"{1e6 * value:,.{1 if value < 1e-4 else 0}f} µs"
    if value < 1:
        return f"{1e3 * value:,.{1 if value < 0.1 else 0}f} ms"
    return f"{in_seconds(value)} s"


def in_seconds(value):
    return f"{value:,.{3 if value < 100 else 1}f}"


def as_days(value):
    return f"{value:,.{2 if value < 10 else 1}f}"


def as_chance(value):
    return chance_text(value).replace("%", " %")


def plan_rows(answer):
    for one in answer["plans"]:
        row = [
            in_seconds(one["step_seconds"]),
            f"{100 * one['mfu']:.1f} %",
            f"{one['memory']['peak_gib']:,.1f}",
            as_chance(one["confidence"]["fit_probability"]),
        ]
        row += [] if one["days_to_train"] is None else [as_days(one["days_to_train"])]
        yield row + ([] if one["cost"] is None else [f"{one['cost']:,.0f}"])


def deployment_rows(answer):
    for one in answer["deployments"]:
        row = [
            f"{one['gpus']}",
            f"{one['users']:,}",
            f"{one['tokens_per_second_per_gpu']:,.0f}",
            as_seconds(one["ttft_seconds"]),
        ]
        row += [f"{one['tokens_per_second_per_user']:,.1f}", as_seconds(one["tpot_seconds"])] if one["tpot_seconds"] else []
        row += [] if one["cost_per_million_tokens"] is None else [f"{one['cost_per_million_tokens']:,.2f}"]
        yield row + ([as_seconds(one["simulated"]["ttft_seconds"]["p99"])] if one["simulated"] else [])


def scaling_rows(answer):
    for one in answer["points"]:
        row = [
            one["gpu"],
            f"{one['num_gpus']:,}",
            in_seconds(one["best"]["step_seconds"]),
            f"{one['tokens_per_second']:,.0f}",
            as_days(one["days"]),
        ]
        yield row + ([] if one["cost"] is None else [f"{one['cost']:,.0f}"])


def budget_rows(answer):
    for one in answer["choices"]:
        yield [f"{one['num_gpus']:,} x {one['gpu']}", as_days(one["days"]), money_text(one["cost"], answer["currency"])]


def placement_rows(answer):
    for one in answer["placements"]:
        yield [
            as_seconds(one["step_seconds"]),
            f"{one['step_seconds_p5']:,.0f} to {one['step_seconds_p95']:,.0f}",
            f"{one['memory_gib']['host']:,.1f}",
        ]


ROWS = {
    "plans": ("table.plans", plan_rows), "deployments": ("table.plans", deployment_rows),
    "scaling": (".scaling table", scaling_rows), "budget": ("table.choices", budget_rows),
    "post-training": ("table.plans", placement_rows),
}  # fmt: skip


def test_figures_are_the_command_lines_in_twenty_questions(asked, pages):
    assert len(QUESTIONS) == 20
    page = pages(asked.url)
    for question in QUESTIONS:
        view = question["view"]
        go(page, **question)
        named = {"gpus": question["counts"], "gpu": question.get("types", question["gpu"])} if view == "scaling" else {}
        asked_of_it = {**question, **named}
        if "offers" in question:
            asked_of_it = {**asked_of_it, "gpu": question["offers"].split()}
        answer = command(COMMANDS[view], asked_of_it)
        table, rows_of = ROWS[view]
        cells = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        found = page.eval_on_selector_all(f"#view-{view} {table} tbody tr", cells)
        wanted = list(rows_of(answer))
        assert len(found) == len(wanted), question
        for cells, row in zip(found, wanted, strict=True):
            assert set(row) <= set(cells), (question, row, cells)


def test_money_is_written_as_the_command_line_writes_it(asked, pages):
    page = pages(asked.url)
    values = [0.0, 0.5, 3.5, 9.995, 99.95, 999.4, 999.6, 1234.0, 419_500.0, 999_499.0, 999_600.0, 2_987_654.0, 2.345e9, 1e13]
    pairs = [(value, currency) for value in values for currency in ("", "USD", "CHF")]
    script = "async pairs => { const { money } = await import('/page/format.js'); return pairs.map(pair => money(...pair)); }"
    assert page.evaluate(script, pairs) == [money_text(*pair) for pair in pairs]
