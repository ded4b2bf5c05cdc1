"""One scenario has one price: explain on the command line and in Python, search --include, check of the exported script,
predict of the row and HTTP give the same seconds and bytes, and a said switch changes all of them alike."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from autoconfig.api.answers import answer
from autoconfig.api.app import create_app
from autoconfig.api.compute import render
from autoconfig.api.store import ServiceSettings
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import Recompute, TrainPlan

import autoconfig as package
from autoconfig.megatron.batch.scripts import torchrun_script
from autoconfig.runs.predict import predict_rows
from autoconfig.training.price import violations
from autoconfig.training.question import request_of, understand

SEED = int(os.environ.get("AUTOCONFIG_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
MODELS = ("llama3-8b", "llama3-70b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite", "nemotron-3-nano", "mixtral-8x7b")
GPUS = ("h100-sxm-80gb", "h200-sxm-141gb", "b200-180gb", "b300-288gb", "gb200-192gb", "gb300-288gb", "a100-80gb")
STACKS = (None, None, "transformer-engine", "nemo-25.11", "nemo-26.04", "nemo-26.06", "megatron-moe-modelzoo")
SWITCHES: dict[str, tuple[Any, ...]] = {
    "dispatcher": ("allgather", "alltoall", "deepep", "hybridep"),
    "cuda_graphs": ("none", "attn", "attn,moe_router,moe_preprocess", "full_iteration"),
    "ep_overlap": (True, False),
    "fused_experts": (True, False),
    "fp8_attention": (True, False),
    "fp8_output": (True, False),
    "offload_layers": (0, 3),
    "moe_imbalance": (1.0, 1.3),
}
RECOMPUTES = ("none", "none", "none", "selective:core_attn", "selective:moe_act", "full:uniform:1", "full:block:2")


def drawn(chance: random.Random) -> tuple[dict[str, Any], TrainPlan]:
    """Return a question with each switch said in a third of them, and a legal plan of it."""
    while True:
        gpu = chance.choice(GPUS)
        precisions = ("bf16", "mxfp8", "mxfp8") if gpu[0] in "bg" else ("bf16", "tensorwise") if gpu[0] == "h" else ("bf16",)
        asked = {
            "model": chance.choice(MODELS),
            "gpu": gpu,
            "gpus": chance.choice((8, 16)),
            "seq_length": chance.choice((2048, 4096, 16384)),
            "global_batch_size": 64,
            "precision": chance.choice(precisions),
            "software": chance.choice(STACKS),
        }
        said = {name: chance.choice(values) for name, values in SWITCHES.items() if chance.random() < 1 / 3}
        for _ in range(20):
            tp, pp, ep = chance.choice((1, 1, 2, 4)), chance.choice((1, 1, 2)), chance.choice((1, 2, 4, 8))
            vpp = chance.choice((1, 2)) if pp > 1 else 1
            size = {"tp": tp, "pp": pp, "vpp": vpp, "ep": ep, "dp": asked["gpus"] // (tp * pp), "mbs": chance.choice((1, 2))}
            plan = TrainPlan(**size, sp=tp > 1, recompute=Recompute.parse(chance.choice(RECOMPUTES)))
            try:
                if not violations(understand(request_of({**asked, **said})).scenario, plan):
                    return {**asked, **said}, plan
            except InputError:
                break


def options(asked: dict[str, Any]) -> list[str]:
    """Return the question as words of the command line."""
    words = []
    for name, value in asked.items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{dashed}")
        elif value is not None:
            words += [f"--{dashed}", str(value)]
    return words


def row_of(asked: dict[str, Any], plan: TrainPlan) -> dict[str, str]:
    """Return the question and its plan as a row of a table."""
    names = {"seq_length": "seq", "global_batch_size": "gbs", "dispatcher": "moe_dispatcher", "cuda_graphs": "cuda_graph_scope"}
    said = {names.get(name, name): value for name, value in asked.items() if value is not None}
    said |= {key: getattr(plan, key) for key in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "sp", "recompute")}
    return {name: str(int(value) if isinstance(value, bool) else value) for name, value in said.items()}


class Doors:
    """The six ways to a price."""

    def __init__(self, command: Any, service: Any, folder: Any) -> None:
        self.command, self.service, self.folder = command, service, folder

    def prices(self, asked: dict[str, Any], plan: TrainPlan) -> dict[str, tuple[float, float]]:
        """Return door -> (seconds, GiB)."""
        text, given = str(plan), {name: value for name, value in asked.items() if value is not None}
        found = self.command("explain", *options(asked), "--no-binds", text)
        prices = {"explain": (found["step_seconds"], found["memory"]["peak_gib"])}
        keys = ("tp", "pp", "vpp", "ep", "mbs", "sp")
        fix = [f"{key}={int(getattr(plan, key))}" for key in keys] + [f"recompute={plan.recompute}"]
        [included] = package.search(**given, include=[text], fix=fix, top=1).to_dict()["included"]
        prices["search"] = included["step_seconds"], included["memory"]["peak_gib"]
        scenario = understand(request_of(asked)).scenario
        script = self.folder / "train.sh"
        script.write_text(torchrun_script(scenario, plan, None))
        checked = package.check(script).to_dict()["report"]
        prices["check"] = checked["step_seconds"], checked["memory"]["peak_gib"]
        [predicted] = predict_rows([row_of(asked, plan)])
        assert predicted.step_seconds is not None and predicted.peak_gib is not None, predicted.note
        prices["predict"] = predicted.step_seconds, predicted.peak_gib
        with ThreadPoolExecutor(1) as other:  # a page's test leaves its own event loop in this thread
            replied = other.submit(lambda: asyncio.run(self.posted({**given, "plan": text, "binds": False}))).result()
        prices["HTTP"] = replied["step_seconds"], replied["memory"]["peak_gib"]
        same = package.explain(text, binds=False, **given).to_dict()
        prices["Python"] = same["step_seconds"], same["memory"]["peak_gib"]
        return prices

    async def posted(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the service's answer to a question."""
        inside = httpx.ASGITransport(self.service)
        async with httpx.AsyncClient(transport=inside, base_url="http://localhost") as client:
            reply = await client.post("/v1/explain", json=body)
            assert reply.status_code == 200, reply.text
            return reply.json()


async def answered(kind: str, body: dict[str, Any], _: Any, calibration: str | None = None, **__: Any) -> Any:
    """Answer a request as a process of the service does."""
    return render(*answer(kind, body, calibration))


@pytest.fixture(scope="module")
def doors(autoconfig: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    app = create_app(ServiceSettings(database=f"sqlite:///{folder}/doors.db"))
    app.state.service.compute.answer = answered  # in this process, where the service has a pool of others
    yield Doors(autoconfig.json, app, folder)
    app.state.service.engine.dispose()


def hold_alike(doors: Doors, number: int) -> None:
    """One question, and the same with one said switch taken back."""
    chance = random.Random(f"{SEED} {number}")
    asked, plan = drawn(chance)
    before = doors.prices(asked, plan)
    said = [name for name in SWITCHES if name in asked]
    changed = {name: value for name, value in asked.items() if name != (chance.choice(said) if said else "")}
    questions = [(asked, before)]
    if len(changed) < len(asked) and not violations(understand(request_of(changed)).scenario, plan):
        questions.append((changed, doors.prices(changed, plan)))
    for question, prices in questions:
        expected = prices["explain"]
        for door, price in prices.items():
            said = f"seed {SEED}, case {number}, {door}: {question} {plan}: {prices}"
            assert price == pytest.approx(expected, rel=1e-9), said


@pytest.mark.parametrize("number", [pytest.param(i, marks=() if i < 8 else pytest.mark.long) for i in range(30)])
def test_a_scenario_has_one_price_through_every_door(doors, number):
    hold_alike(doors, number)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(30, 330))
def test_many_scenarios_have_one_price_through_every_door(doors, number):
    hold_alike(doors, number)
