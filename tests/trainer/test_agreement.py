"""However a model is divided, its losses and gradients are those of a single rank; recomputation changes neither.

`make judge` runs them on the megatron-core that judges, `make soak` on that of `make test`.
"""

import pytest
from autoconfig.specs.job import Job, job_text
from autoconfig.specs.models.model import ModelSpec
from autoconfig.specs.plan import parse_plan
from autoconfig.specs.scenario import Numerics, Workload

pytestmark = [pytest.mark.torch, pytest.mark.judge, pytest.mark.xdist_group("torchrun")]
GPT = ModelSpec(
    name="gpt", num_layers=4, hidden_size=64, num_attention_heads=4, vocab_size=512, ffn_hidden_size=256, num_query_groups=4,
    kv_channels=16, max_position_embeddings=64,
)  # fmt: skip
LLAMA = GPT.replace(
    name="llama", num_query_groups=2, ffn_hidden_size=160, normalization="RMSNorm", gated_linear_unit=True, activation="swiglu",
    add_bias_linear=False, position_embedding_type="rope", untie_embeddings_and_output_weights=True, qk_layernorm=True,
)  # fmt: skip
MOE = LLAMA.replace(
    name="moe", qk_layernorm=False, num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=64, moe_layer_freq=(0, 1, 1, 1),
    moe_shared_expert_intermediate_size=32,
)  # fmt: skip
MLA = LLAMA.replace(
    name="mla", qk_layernorm=False, num_query_groups=4, multi_latent_attention=True, q_lora_rank=32, kv_lora_rank=16,
    qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=16,
)  # fmt: skip
MODELS = {model.name: model for model in (GPT, LLAMA, MOE, MLA)}
ALONE = ["recompute=none", "recompute=full:uniform:1", "recompute=full:block:2"]
SELECTIVE = {
    "gpt": "core_attn+layernorm", "llama": "core_attn+mlp", "moe": "layernorm+moe", "mla": "mla_up_proj",
}  # fmt: skip
TWO = {
    "gpt": ["tp=2", "tp=2,sp=1", "pp=2", "pp=2,vpp=2", "cp=2", "dp=2"],
    "llama": ["tp=2,sp=1", "pp=2,first=3,last=1", "pp=2,vpp=2,recompute=full", "cp=2"],
    "moe": ["ep=2", "tp=2,sp=1,ep=2", "tp=2,sp=1,etp=2", "pp=2", "cp=2,ep=2"],
    "mla": ["tp=2,sp=1", "cp=2", "pp=2,recompute=selective:mla_up_proj"],
}
FOUR = {
    "gpt": ["pp=4", "tp=2,sp=1,pp=2,vpp=2"], "llama": ["tp=2,sp=1,cp=2"], "moe": ["tp=2,sp=1,ep=2,etp=2,dp=2"], "mla": [],
}  # fmt: skip


def job(model: str, plan: str, processes: int = 1, **changes) -> Job:
    whole = f"tp=1,pp=1,{plan}" if "tp=" not in plan and "pp=" not in plan else plan
    numerics = Numerics(precision="fp32", hidden_dropout=0.0, attention_dropout=0.0)
    values = {
        "model": MODELS[model], "plan": parse_plan(whole, processes), "numerics": numerics, "device": "cpu",
        "workload": Workload(seq_length=32, global_batch_size=4),
    }  # fmt: skip
    return Job(**{**values, **changes})


def cases(plans: dict[str, list[str]], processes: int) -> dict[str, str]:
    """Every plan without the distributed optimizer, whose gradients lie whole on each rank, and the first with it."""
    found = {f"{model} {plan}": job(model, f"{plan},dist_opt=0", processes) for model, of in plans.items() for plan in of}
    sharded = {f"{model} {plan} dist_opt": job(model, plan, processes) for model, of in plans.items() for plan in of[-1:]}
    return {name: job_text(case) for name, case in (found | sharded).items()}


def single_cases() -> dict[str, str]:
    found = {f"{model} {text}": job(model, f"{text},dist_opt=0") for model in MODELS for text in ALONE}
    found |= {f"{m} selective": job(m, f"recompute=selective:{text},dist_opt=0") for m, text in SELECTIVE.items()}
    found |= {f"{model} unfused": job(model, "dist_opt=0", attention_kernel="unfused") for model in ("llama", "mla")}
    found["gpt mbs=4"] = job("gpt", "mbs=4,dist_opt=0")
    return {name: job_text(case) for name, case in found.items()}


@pytest.fixture(scope="session")
def alone(answers):
    return answers(1, single_cases())


@pytest.fixture(scope="session")
def two(answers):
    return answers(2, cases(TWO, 2))


@pytest.fixture(scope="session")
def four(answers):
    return answers(4, cases(FOUR, 4))


def check(found: dict, alone: dict) -> None:
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    assert found["norms"] == pytest.approx(alone["norms"], rel=2e-5)
    if found["gradients"]:
        assert found["gradients"].keys() == alone["gradients"].keys()
        for name, (norm, product) in alone["gradients"].items():
            assert found["gradients"][name] == pytest.approx([norm, product], rel=1e-4, abs=1e-4 * norm + 1e-9), name


@pytest.mark.parametrize("name", [name for name in single_cases() if "recompute=none" not in name])
def test_recomputation_kernel_and_micro_batch_change_nothing(name, alone):
    check(alone[name], alone[f"{name.split()[0]} recompute=none"])


@pytest.mark.parametrize("name", list(cases(TWO, 2)))
def test_two_ranks_agree_with_one(name, two, alone):
    check(two[name], alone[f"{name.split()[0]} recompute=none"])


@pytest.mark.parametrize("name", list(cases(FOUR, 4)))
def test_four_ranks_agree_with_one(name, four, alone):
    check(four[name], alone[f"{name.split()[0]} recompute=none"])


def test_recomputation_holds_less(alone):
    recomputed = [name for name in alone if "recompute=full" in name]
    assert recomputed
    for name in recomputed:
        assert alone[name]["peak"] < alone[f"{name.split()[0]} recompute=none"]["peak"]


def test_the_losses_are_those_of_an_untrained_model(alone):
    """ln 512 = 6.238; the gradient is not zero."""
    for name, found in alone.items():
        assert all(6.1 < loss < 6.4 for loss in found["losses"]), name
        assert min(norm for norm, _ in found["gradients"].values()) > 0, name
