"""Files of other launchers, judged by those launchers' own parsers: DeepSpeed, accelerate, torchtitan, megatron-core."""

import json
import random
from operator import attrgetter

import pytest
from autoconfig.specs.plan import NONE
from autoconfig.specs.scenario import Scenario
from autoconfig.specs.software.software import OWN_BUCKET

from autoconfig.formats.convert import write_plan
from autoconfig.formats.hooks.deepspeed import bucket
from autoconfig.formats.hooks.torchtitan import TORCHTITAN
from autoconfig.formats.writers.table import WRITERS
from autoconfig.megatron.flag_table import words
from autoconfig.megatron.write import mock_arguments
from autoconfig.training.question import request_of, understand
from autoconfig.training.rank import rank
from autoconfig.training.space import Constraints

SMALL = {"model": "llama3-8b", "gpus": 16, "gpu": "h100", "seq_length": 4096, "global_batch_size": 64}
ZERO = {**SMALL, "gpus": 8, "gpu": "h200", "software": "deepspeed"}
TORCH = {**SMALL, "model": "llama3.1-8b", "software": "torchtitan"}
MOE = {**SMALL, "model": "qwen3-30b-a3b", "gpus": 32, "global_batch_size": 256}


def plans_of(question, form, count):
    """(scenario, random legal plans that the format can say); offloaded ones, too, where it can."""
    scenario: Scenario = understand(request_of(question)).scenario
    writer = WRITERS[form]
    ranking = rank(scenario, writer.wish if writer.wish.fixed else Constraints(), 0.0)
    rng = random.Random(1)
    rows = rng.sample(range(len(ranking.row)), len(ranking.row))
    chosen = (plan for row in rows if not writer.refused(scenario, plan := ranking.plan(row)))
    return scenario, [plan for plan, _ in zip(chosen, range(count), strict=False)]


def check_deepspeed(monkeypatch, count, batch=64):
    config = pytest.importorskip("deepspeed.runtime.config")
    scenario, plans = plans_of({**ZERO, "global_batch_size": batch}, "deepspeed", count)
    assert len(plans) >= 10
    monkeypatch.setattr(config.dist, "get_rank", lambda *group: 0)
    for plan in plans:

        class Ranks:
            get_data_parallel_world_size = staticmethod(lambda plan=plan: plan.dp)

        found = config.DeepSpeedConfig(json.loads(write_plan(scenario, plan, "deepspeed").text), mpu=Ranks())
        assert found.zero_optimization_stage == plan.fsdp or int(plan.dist_opt)
        assert found.train_batch_size == batch and found.train_micro_batch_size_per_gpu == plan.mbs
        assert found.gradient_accumulation_steps == batch // plan.mbs // plan.dp
        assert found.bfloat16_config.enabled and not found.float16_config.enabled
        if found.zero_optimization_stage:
            zero = found.zero_config
            assert zero.reduce_bucket_size == zero.allgather_bucket_size == bucket(scenario) and zero.overlap_comm


def check_accelerate(tmp_path, count, batch=64, software="deepspeed"):
    config = pytest.importorskip("accelerate.commands.config.config_args")
    scenario, plans = plans_of({**ZERO, "software": software, "global_batch_size": batch}, "accelerate", count)
    assert len(plans) >= 10
    for plan in plans:
        (tmp_path / "accelerate.yaml").write_text(write_plan(scenario, plan, "accelerate").text)
        found = config.load_config_from_file(str(tmp_path / "accelerate.yaml"))
        assert found.num_processes == 8 and found.mixed_precision == "bf16"
        sharded = "DEEPSPEED" if software == "deepspeed" else "FSDP"
        assert found.distributed_type == (sharded if plan.fsdp or plan.dist_opt else "MULTI_GPU")
        if found.distributed_type == "DEEPSPEED":
            assert found.deepspeed_config["zero_stage"] == plan.fsdp or int(plan.dist_opt)
        elif plan.fsdp:
            assert found.fsdp_config["fsdp_version"] == 2
            assert found.fsdp_config["fsdp_reshard_after_forward"] is (plan.fsdp == 3)
            assert found.fsdp_config["fsdp_activation_checkpointing"] is (plan.recompute != NONE)


def check_torchtitan(tmp_path, count):
    config = pytest.importorskip("torchtitan.config")
    scenario, plans = plans_of(TORCH, "torchtitan", count)
    assert len(plans) == count
    for plan in plans:
        (tmp_path / "train.toml").write_text(write_plan(scenario, plan, "torchtitan").text)
        found = config.ConfigManager().parse_args(["--job.config_file", str(tmp_path / "train.toml")])
        for table, inside in TORCHTITAN.values(scenario, plan).items():
            section = attrgetter(table)(found)
            for key, value in inside.items():
                assert getattr(section, key) == value, f"{table}.{key}"


def check_transformer_config(question, count):
    pytest.importorskip("megatron.core")
    scenario, plans = plans_of(question, "transformer-config", count)
    assert len(plans) == count
    for plan in plans:
        scope: dict[str, object] = {}
        exec(write_plan(scenario, plan, "transformer-config").text, scope)
        config = scope["config"]
        assert config.tensor_model_parallel_size == plan.tp and config.pipeline_model_parallel_size == plan.pp
        assert config.virtual_pipeline_model_parallel_size == (plan.vpp if plan.vpp > 1 else None)
        assert (config.pipeline_dtype is not None) == (plan.pp > 1)
        assert config.num_moe_experts == scenario.model.num_moe_experts
        assert config.recompute_granularity == (None if plan.recompute == NONE else plan.recompute.granularity)


def check_megatron_yaml(judge, question, count):
    """The list that Megatron-LM's runner makes of MODEL_ARGS, before megatron-core."""
    yaml = pytest.importorskip("yaml")
    scenario, plans = plans_of(question, "megatron-yaml", count)
    cluster = scenario.cluster
    for plan in plans:
        body = yaml.safe_load(write_plan(scenario, plan, "megatron-yaml").text)
        listed = []
        for name, value in body["MODEL_ARGS"].items():
            listed += [name] if value is True else [name, *map(str, value if isinstance(value, list) else [value])]
        assert listed == words(mock_arguments(scenario, plan))
        environment = {name: str(value) for name, value in body["ENV_VARS"].items()}
        answer = judge.arguments(listed, cluster.num_gpus, environment, cluster.gpu.compute_capability)
        assert answer["accepted"] and answer["changed"] == {}, answer


def test_deepspeeds_own_buckets_are_those_that_are_priced_where_a_file_says_none(monkeypatch):
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    for stage in (1, 2, 3):
        zero = config.DeepSpeedZeroConfig(stage=stage)
        assert zero.reduce_bucket_size == zero.allgather_bucket_size == OWN_BUCKET
        assert zero.overlap_comm is (stage == 3)


def test_deepspeed_reads_what_is_written(monkeypatch):
    check_deepspeed(monkeypatch, 10)


@pytest.mark.parametrize("software", ["deepspeed", "torch-eager"])
def test_accelerate_reads_what_is_written(tmp_path, software):
    check_accelerate(tmp_path, 10, software=software)


def test_torchtitan_reads_what_is_written(tmp_path):
    check_torchtitan(tmp_path, 10)


@pytest.mark.parametrize("question", [SMALL, MOE], ids=["dense", "moe"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on what is legal
def test_megatron_core_builds_the_config_that_is_written(question):
    check_transformer_config(question, 10)


@pytest.mark.parametrize("question", [SMALL, MOE], ids=["dense", "moe"])
def test_megatron_takes_the_yaml_that_is_written(judge, question):
    check_megatron_yaml(judge, question, 10)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::UserWarning")  # advice on what is legal
def test_fifty_plans_of_every_format(judge, monkeypatch, tmp_path):
    for batch in (64, 128, 256, 512, 1024):
        check_deepspeed(monkeypatch, 50, batch)
        check_accelerate(tmp_path, 50, batch)
    check_torchtitan(tmp_path, 50)
    for question in (SMALL, MOE):
        check_transformer_config(question, 50)
        check_megatron_yaml(judge, question, 50)
