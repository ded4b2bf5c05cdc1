"""Sparse attention (DSA) in launch scripts, written and read; and what of it is refused."""

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.plan import parse_plan

from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.scripts import torchrun_script
from autoconfig.serving.question import ServeRequest
from autoconfig.serving.question import understand as understand_serving
from autoconfig.training.question import Request, understand

PLAN = "tp=4,pp=2,ep=64,mbs=1,sp=1,recompute=selective:core_attn"


def written(name: str = "glm-5") -> str:
    scenario = understand(Request(model=name, gpus=512, gpu="h100", seq_length=4096, global_batch_size=512)).scenario
    return torchrun_script(scenario, parse_plan(PLAN, 512), None)


@pytest.mark.parametrize("name", ["glm-5", "deepseek-v3.2"])
def test_scripts_read_back(name: str) -> None:
    found = read_check(written(name), CheckRequest(gpu="h100"))
    model, wanted = found.question.scenario.model, understand(Request(model=name, gpus=512, gpu="h100")).scenario.model
    for field in ("n_heads", "head_dim", "topk", "rope_interleaved"):
        assert getattr(model, f"dsa_indexer_{field}") == getattr(wanted, f"dsa_indexer_{field}")
    assert found.plan == parse_plan(PLAN, 512) and found.unknown == ()
    assert not any("sparse" in note for note in found.question.assumed)


def test_a_file_without_fused_kernels_is_told_what_is_priced() -> None:
    text = "\n".join(line for line in written().splitlines() if "--dsa-kernel-backend" not in line)
    assert any("--dsa-kernel-backend" in note for note in read_check(text, CheckRequest(gpu="h100")).question.assumed)


@pytest.mark.parametrize(("old", "new", "why"), [
    ("'dsa'", "'other'", "experimental attention cannot be checked"),
    ("--multi-latent-attention", "--group-query-attention", "experimental attention cannot be checked"),
    ("--dsa-indexer-topk '2048'", "--dsa-indexer-topk '2048'\n    --dsa-indexer-topk-freq 4", "take over"),
    ("    --dsa-indexer-n-heads '32'\n", "", "--dsa-indexer-n-heads is not in the file"),
])  # fmt: skip
def test_other_variants_are_refused(old: str, new: str, why: str) -> None:
    text = written()
    assert old in text
    with pytest.raises(InputError, match=why):
        read_check(text.replace(old, new), CheckRequest(gpu="h100"))


@pytest.mark.parametrize(("changes", "why"), [
    ({"software": "nemo-25.11"}, "lacks glm-5's sparse attention"),
    ({"gpu": "a100"}, "Hopper and for Blackwell"),
    ({"gpu": "rtx-pro-6000"}, "Hopper and for Blackwell"),
])  # fmt: skip
def test_training_is_refused_where_nothing_runs_it(changes: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        understand(Request(**{"model": "glm-5", "gpus": 512, "gpu": "h100", **changes}))


@pytest.mark.parametrize(("changes", "why"), [({"engine": "megatron"}, "no sparse attention"), ({"gpu": "l40s"}, "Hopper")])
def test_serving_is_refused_where_nothing_runs_it(changes: dict[str, str], why: str) -> None:
    with pytest.raises(InputError, match=why):
        understand_serving(ServeRequest(**{"model": "glm-5", "gpus": 16, "gpu": "h200", **changes}))
