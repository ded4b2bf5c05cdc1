"""Hybrid models and sparse attention (DSA) in launch scripts, written and read; and what is refused."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.layouts import staged_pattern
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.plan import TrainPlan, parse_plan
from autoconfig.specs.remarks import sentences
from autoconfig.specs.scenario import Scenario
from tables import tabled

from autoconfig.megatron.batch.scripts import sbatch_script, torchrun_script
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.serving.question import ServeRequest
from autoconfig.serving.question import understand as understand_serving
from autoconfig.training.price import PlanReport
from autoconfig.training.question import Request, understand

Writer = Callable[[Scenario, TrainPlan, PlanReport | None], str]
NANO = load_model("nemotron-3-nano")


def written(name: str, plan: str, gpus: int = 16) -> str:
    asked = Request(model=name, gpus=gpus, gpu="h100", seq_length=4096, global_batch_size=64)
    return torchrun_script(understand(asked).scenario, parse_plan(plan, gpus), None)


@tabled
def test_segments_are_the_chunks_in_their_order(plan: str, cuts: list[int]) -> None:
    letters = NANO.hybrid_layer_pattern
    ends = [0, *cuts, len(letters)]
    assert staged_pattern(NANO, parse_plan(plan, 16)) == "|".join(letters[a:b] for a, b in pairwise(ends))


@pytest.mark.parametrize("name", ["nemotron-3-nano", "nemotron-3-super", "qwen3-next-80b-a3b", "qwen3.5-27b"])
@pytest.mark.parametrize("plan", ["tp=2,pp=2,mbs=1,sp=1", "pp=2,vpp=2,mbs=1", "pp=4,vpp=2,mbs=1", "tp=4,pp=4,sp=1,mbs=2"])
@pytest.mark.parametrize("write", [torchrun_script, sbatch_script])
def test_plans_of_hybrids_read_back(name: str, plan: str, write: Writer) -> None:
    asked = Request(model=name, gpus=16, gpu="h100", seq_length=4096, global_batch_size=64)
    scenario = understand(asked).scenario
    layers, wanted = scenario.model.num_layers, parse_plan(plan, 16)
    if layers % (wanted.pp * wanted.vpp):
        middle = layers // (wanted.pp * wanted.vpp) * wanted.vpp
        wanted = parse_plan(f"{plan},last={layers - (wanted.pp - 1) * middle},first={middle}", 16)
    found = read_check(write(scenario, wanted, None), CheckRequest(gpu="h100"))
    assert found.plan == wanted and found.unknown == found.notes == () and found.split is None
    model = found.question.scenario.model
    for field in ("hybrid_layer_pattern", "num_layers", "kinds", "moe_latent_size", "attention_output_gate", "mtp_num_layers"):
        assert getattr(model, field) == getattr(scenario.model, field), field


def test_the_script_starts_the_program_of_hybrids_without_a_number_of_layers() -> None:
    text = written("nemotron-3-super", "tp=2,pp=1,ep=8,mbs=1,sp=1")
    assert "pretrain_hybrid.py" in text and "pretrain_gpt.py" not in text
    assert "--num-layers" not in text and "--moe-layer-freq" not in text
    assert "/*E/*E" in text and "--mtp-use-repeated-layer" in text and "--moe-latent-size '1024'" in text
    assert "--spec 'megatron.core.models.hybrid.hybrid_layer_specs' 'hybrid_stack_spec'" in text
    assert "--mamba-num-heads '128'" in text and "--linear-num-key-heads" not in text


@tabled
def test_what_contradicts_the_pattern_is_refused(old: str, new: str, says: str) -> None:
    text = written("nemotron-3-nano", "pp=2,mbs=1")
    assert old in text
    with pytest.raises(InputError, match=says):
        read_check(text.replace(old, new, 1), CheckRequest(gpu="h100"))


def test_segments_that_do_not_divide_are_refused() -> None:
    text = written("nemotron-3-nano", "pp=2,mbs=1")
    start = text.index("MEMEM*EMEM")
    with pytest.raises(InputError, match="no multiple of pp 2"):
        read_check(text[:start] + "MEM|" + text[start + 3 :], CheckRequest(gpu="h100"))


SPARSE_PLAN = "tp=4,pp=2,ep=64,mbs=1,sp=1,recompute=selective:core_attn"


def sparse_script(name: str = "glm-5") -> str:
    scenario = understand(Request(model=name, gpus=512, gpu="h100", seq_length=4096, global_batch_size=512)).scenario
    return torchrun_script(scenario, parse_plan(SPARSE_PLAN, 512), None)


@pytest.mark.parametrize("name", ["glm-5", "deepseek-v3.2"])
def test_scripts_read_back(name: str) -> None:
    found = read_check(sparse_script(name), CheckRequest(gpu="h100"))
    model, wanted = found.question.scenario.model, understand(Request(model=name, gpus=512, gpu="h100")).scenario.model
    for field in ("n_heads", "head_dim", "topk", "rope_interleaved"):
        assert getattr(model, f"dsa_indexer_{field}") == getattr(wanted, f"dsa_indexer_{field}")
    assert found.plan == parse_plan(SPARSE_PLAN, 512) and found.unknown == ()
    assert not any("sparse" in note for note in sentences(found.question.assumed))


@pytest.mark.parametrize(("changes", "why"), [({"engine": "megatron"}, "no sparse attention"), ({"gpu": "l40s"}, "Hopper")])
def test_serving_is_refused_where_nothing_runs_it(changes: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        understand_serving(ServeRequest(**{"model": "glm-5", "gpus": 16, "gpu": "h200", **changes}))
