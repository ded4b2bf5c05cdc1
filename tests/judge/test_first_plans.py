"""The first plans of the forty questions: accepted by the real parser, and one step of them, cut down, in the training core."""

import dataclasses
import importlib.util
import json
import math
import os
import subprocess
from pathlib import Path

import pytest
from autoconfig.specs.job import Job, job_text
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import NONE, Recompute, TrainPlan
from autoconfig.specs.scenario import Numerics, Workload
from ready_python import ranks, ready_python

from autoconfig.formats.writers.bridge import fine_tunes
from autoconfig.training.answer import answer as search
from autoconfig.training.question import Request

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("test_fit_chance", ROOT / "tests" / "training" / "test_fit_chance.py")
questions = importlib.util.module_from_spec(spec)
spec.loader.exec_module(questions)
QUESTIONS = questions.QUESTIONS
STEPPED = (3, 6, 12, 22, 24)
"""Questions whose first plans are run by `make judge`; `make soak` runs all."""
MOST = 8
"""Processes."""
WORDS, SEQUENCE = 512, 32
PATIENCE_S = 240


def first(number):
    found = search(Request(**QUESTIONS[number], top=1))
    return found.question.scenario, found.plans[0].report.plan


def named(number):
    return " ".join(map(str, QUESTIONS[number].values()))


@pytest.mark.parametrize("number", range(len(QUESTIONS)), ids=named)
def test_the_real_parser_accepts_it(judge, number):
    scenario, plan = first(number)
    if fine_tunes(scenario):
        pytest.skip("pretrain_gpt.py trains all weights: its files are judged in test_rl_exports.py")
    answer = judge.plan(scenario, plan)
    assert answer["accepted"] and not answer["changed"], (str(plan), answer)


def small(model: ModelSpec, layers: int) -> ModelSpec:
    """A model of the same kind with a few layers and channels. Queries are compressed where attention is latent: without that
    megatron-core 0.19 wants Transformer Engine."""
    sizes = {"num_layers": layers, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 4, "kv_channels": 16,
             "ffn_hidden_size": 128, "vocab_size": WORDS, "max_position_embeddings": 64, "mtp_num_layers": 0,
             "window_size": None, "window_attn_skip_freq": None}  # fmt: skip
    if model.is_moe:
        shared = 64 if model.moe_shared_expert_intermediate_size else 0
        sizes |= {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 64, "moe_layer_freq": 1,
                  "moe_shared_expert_intermediate_size": shared}  # fmt: skip
    if model.multi_latent_attention:
        sizes |= {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16}
    known = {field.name for field in dataclasses.fields(ModelSpec)}
    return model.replace(**{name: value for name, value in sizes.items() if name in known}, router=None, rope_scaling=None)


def cut(plan: TrainPlan) -> TrainPlan:
    """The plan with every degree cut to at most 2, on at most MOST processes."""
    tp, pp, cp, ep = (min(getattr(plan, key), 2) for key in ("tp", "pp", "cp", "ep"))
    vpp = min(plan.vpp, 2) if pp > 1 else 1
    dp = 2 if (plan.dp > 1 or ep > tp * cp) and 2 * tp * pp * cp <= MOST else 1
    recompute = plan.recompute
    if recompute.granularity == "full":
        recompute = Recompute("full", (), recompute.method, min(recompute.num_layers, 2))
    if "moe_act" in recompute.modules:  # of grouped GEMMs, which the core has on GPUs alone
        rest = tuple(module for module in recompute.modules if module != "moe_act")
        recompute = Recompute("selective", rest) if rest else NONE
    return TrainPlan(tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, dp=dp, mbs=1, sp=plan.sp and tp > 1,
                     recompute=recompute, dist_opt=plan.dist_opt)  # fmt: skip


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    with ready_python(tmp_path_factory.mktemp("ready")) as program:
        yield str(program)


def job_of(number):
    """One step of the question's first plan, cut down, two layers a chunk."""
    scenario, plan = first(number)
    mine = cut(plan)
    return Job(
        model=small(scenario.model, 2 * mine.pp * mine.vpp), plan=mine, steps=1, warmup_steps=0, device="cpu",
        workload=Workload(seq_length=SEQUENCE, global_batch_size=mine.dp * 2 * mine.pp * mine.vpp),
        numerics=Numerics(precision="bf16", hidden_dropout=0.0, attention_dropout=0.0),
        attention_kernel="unfused" if scenario.model.attention_sinks else "flash",
    )  # fmt: skip


HYBRIDS = [number for number, question in enumerate(QUESTIONS) if question["model"].startswith(("nemotron-3", "qwen3-next"))]
"""Parsed, and not stepped: the training core builds megatron-core's GPT model (trainer/model.py), and the recurrent layers of
its hybrid model have CUDA and Triton kernels only, for which traces have stand-ins without values."""


@pytest.mark.xdist_group("torchrun")
@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=[] if n in STEPPED else [pytest.mark.soak]) for n in range(len(QUESTIONS)) if n not in HYBRIDS],
)
def test_one_step_of_it_runs(number, ready, tmp_path):
    job = job_of(number)
    assert job.plan.world_size <= MOST
    (tmp_path / "job.json").write_text(job_text(job))
    command = ranks(ready, job.plan.world_size, "-m", "autoconfig.trainer", "--job", str(tmp_path / "job.json"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, (named(number), str(job.plan), done.stdout[-1500:], done.stderr[-6000:])
    result = json.loads((tmp_path / "result.json").read_text())
    losses = result["losses"]
    assert len(losses) == 1 and losses[0] == pytest.approx(math.log(WORDS), abs=0.6), "a model that knows nothing"
