"""Files of post-training frameworks: what is written reads back as the same placement, what cannot run is refused."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from autoconfig.specs.errors import AutoconfigError, InputError, UnsupportedError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.remarks import sentences
from click.testing import CliRunner
from tables import tabled

from autoconfig.cli.main import cli
from autoconfig.evidence.read import read_texts
from autoconfig.formats.post_training import slime
from autoconfig.formats.post_training.check import check_text, read_file
from autoconfig.formats.post_training.export import export_texts
from autoconfig.formats.post_training.keys import FREE
from autoconfig.formats.post_training.log import calibrate, log_of
from autoconfig.formats.post_training.run import map_of_framework, placement_of
from autoconfig.post_training.frameworks import load_algorithm, load_framework
from autoconfig.post_training.job import Placement, PostTrainingJob
from autoconfig.post_training.samples.lengths import ResponseLengths
from autoconfig.post_training.space import enumerate_placements

pytestmark = pytest.mark.usefixtures("unsearched")
DATA = Path(__file__).resolve().parents[2] / "autoconfig" / "data"
FRAMEWORKS = ("verl", "nemo-rl", "openrlhf", "trl")
VERL = """#!/bin/bash
GPUS=8
python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer \\
    algorithm.adv_estimator=grpo data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=4096 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.ppo_mini_batch_size=128 actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \\
    actor_rollout_ref.actor.megatron.param_offload=True actor_rollout_ref.actor.megatron.optimizer_offload=True \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=8 \\
    trainer.nnodes=1 trainer.n_gpus_per_node=$GPUS "$@"
"""


def random_cases(framework: str, count: int, seed: int = 20):
    """(job, placement) that the framework's own search offers."""
    rng = random.Random(seed)
    found = []
    models = ["qwen2.5-7b", "llama3.1-8b", "qwen3-14b"] + ([] if framework in ("trl", "openrlhf") else ["qwen3-30b-a3b"])
    while len(found) < count:
        algorithm = rng.choice({"verl": ["grpo", "dapo", "ppo"], "openrlhf": ["grpo", "ppo"]}.get(framework, ["grpo", "dapo"]))
        model = load_model(rng.choice(models))
        job = PostTrainingJob(
            policy=model,
            algorithm=load_algorithm(algorithm),
            framework=load_framework(framework),
            gpu=load_gpu("h100"),
            prompts=rng.choice([128, 256, 512]),
            group=rng.choice([8, 16]),
            prompt_tokens=200.0,
            longest_prompt=1024,
            responses=ResponseLengths(mean=1000.0, cap=4096),
            minibatch=1024,
            critic=model if algorithm == "ppo" else None,
        )
        every = list(enumerate_placements(job, rng.choice([8, 16, 32]), 8192, 2))
        for placement in rng.sample(every, min(4, len(every))):
            if framework == "trl":
                placement = replace(placement, tokens_per_gpu=0, offload=False, train=placement.train.replace(mbs=4))
            try:
                found.append((job, placement, export_texts(job, placement)))
            except UnsupportedError:
                continue
    return found[:count]


def read_back(framework: str, texts: dict[str, str], gpus: int, tokens: float):
    text = texts[next(name for name in texts if name != "accelerate.yaml")]
    _, run = read_file(text, {"gpus": gpus})
    return run, placement_of(run, tokens)


def same_after_reading(framework: str, job: PostTrainingJob, placement: Placement, texts: dict[str, str]) -> None:
    """What the files hold reads back as the placement and the job."""
    run, back = read_back(framework, texts, placement.gpus, job.tokens)
    assert back.train == placement.train
    assert (back.engine.tp, back.engine.pp, back.engine.replicas) == (
        placement.engine.tp,
        placement.engine.pp,
        placement.engine.replicas,
    )
    for name in ("colocated", "staleness", "memory_share", "tokens_per_gpu", "cuda_graphs"):
        assert getattr(back, name) == getattr(placement, name), name
    if framework in ("verl", "openrlhf"):
        assert back.offload == placement.offload
    if framework == "openrlhf":
        assert back.critic_gpus == placement.critic_gpus
    assert (run.prompts, run.group, run.minibatch) == (job.prompts, job.group, job.minibatch)
    assert run.algorithm == job.algorithm.name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_written_reads_back_as_the_same_placement(framework):
    for case in random_cases(framework, 50):
        same_after_reading(framework, *case)


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "slime", "swift"])
def test_a_map_holds_keys_that_a_release_takes(framework):
    """By what was read off wheels and tags; verl's trainers in verl/experimental, Megatron-LM and SGLang have others."""
    table = json.loads((DATA / "post_training_keys.json").read_text())[framework]
    taken = {key for name, keys in table.items() if name not in ("versions", "types", "required") for key in keys}
    taken |= {key.rsplit(".", depth)[0] for key in taken for depth in range(1, key.count(".") + 1)}
    keys = {key for entry in map_of_framework(framework).entries for key in entry.keys} - taken
    own = slime.own_keys(keys) if framework == "slime" else keys
    assert {key for key in own if not FREE.search(key) and not key.startswith(("rollout.", "async_training."))} == set()


@tabled
def test_a_key_that_set_gives_is_one_of_the_framework(tmp_path, text, key, near):
    file = tmp_path / "file"
    file.write_text(text or VERL)
    found = CliRunner().invoke(cli, ["rl", "check", str(file), "--gpus", "8", "--set", f"{key}=1"])
    said = " ".join(found.stdout.split())
    assert found.exit_code == 2 and f"Unknown key {key}: " in said and f"has no such key{'; ' * bool(near)}{near}" in said
    assert check_text(VERL, {"set": ["GPUS=16", "actor_rollout_ref.rollout.n=4"]}).unknown == ()


def test_a_key_that_hydra_adds_is_not_read():
    """But for one of verl's dataclasses, which takes no other (verl/utils/config.py, omega_conf_to_dataclass)."""
    found = check_text(VERL.replace('"$@"', "+my.key=3 '++trainer.mine=4'"), {})
    unread = [one.field for one in found.run.notes if "not read" in one.why]
    assert (sentences(found.unknown), unread) == ((), ["my.key", "trainer.mine"])
    refused = check_text(VERL.replace('"$@"', "my.key=3 +actor_rollout_ref.actor.mine=4"), {})
    assert [one.field for one in refused.unknown] == ["my.key", "actor_rollout_ref.actor.mine"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_written_has_known_keys_and_is_legal(framework):
    for _, placement, texts in random_cases(framework, 3, seed=7):
        text = texts[next(name for name in texts if name != "accelerate.yaml")]
        found = check_text(text, {"gpus": placement.gpus, "gpu": "h100"})
        assert found.legal, (sentences(found.unknown), found.broken)


@tabled
def test_what_parsers_let_through_and_cannot_run_is_refused(key, wrong, said):
    name = key.partition("=")[0]
    assert key in VERL
    found = check_text(VERL.replace(key, f"{name}={wrong}"), {})
    assert not found.legal and any(said in text for text in found.broken), found.broken
    assert check_text(VERL, {}).legal


def test_stages_that_do_not_divide_the_layers_are_refused():
    three = VERL.replace("$GPUS", "6").replace(
        "actor.megatron.tensor_model_parallel_size=4", "actor.megatron.pipeline_model_parallel_size=3"
    )
    found = check_text(three.replace("ppo_mini_batch_size=128", "ppo_mini_batch_size=256"), {})
    assert any("28 layers do not divide over 3" in text for text in found.broken), found.broken


def test_a_micro_batch_below_the_longest_sample_is_refused():
    text = "policy:\n  model_name: qwen3-8b\n  max_total_sequence_length: 8704\n"
    text += "  sequence_packing: {enabled: true, train_mb_tokens: 8192}\n"
    said = "a packed micro-batch holds 8,192 tokens, and the longest sample takes 8,704: use 8,704 or more on a GPU"
    assert said in check_text("defaults: grpo_math_1B.yaml\n" + text, {}).broken
    assert said not in check_text("defaults: grpo_math_1B.yaml\n" + text.replace("8192", "8704"), {}).broken


def test_unknown_keys_are_told_by_version():
    old = VERL.replace("algorithm.adv_estimator", "actor_rollout_ref.actor.megatron.grad_offload=True algorithm.adv_estimator")
    assert any("gone from verl 0.9.1; 0.8.0 had it" in text for text in sentences(check_text(old, {}).unknown))
    assert check_text(old, {"version": "0.5.0"}).unknown == ()
    slip = VERL.replace("gpu_memory_utilization", "gpu_memory_utilisation")
    assert any("gpu_memory_utilization?" in text for text in sentences(check_text(slip, {}).unknown))
    with pytest.raises(AutoconfigError, match=r"0\.9\.1"):
        check_text(VERL, {"version": "9.9"})


def test_a_value_of_another_type_is_named():
    text = export_texts(*random_cases("nemo-rl", 1)[0][:2])["grpo.yaml"]
    odd = text.replace("num_generations_per_prompt: ", "num_generations_per_prompt: x")
    with pytest.raises(AutoconfigError, match="whole number"):
        check_text(odd, {})
    odd = text.replace("wandb", "x").replace("enabled: true", "enabled: maybe", 1)
    with pytest.raises(AutoconfigError, match="true or false"):
        check_text(odd, {})


def test_a_nemo_rl_file_without_defaults_must_have_what_its_master_config_requires():
    text = export_texts(*random_cases("nemo-rl", 1)[0][:2])["grpo.yaml"]
    alone = text.replace("defaults: grpo_math_1B.yaml\n", "")
    assert alone != text and check_text(text, {}).legal
    found = check_text(alone, {})
    assert not found.legal and "requires" in found.broken[0] and "grpo.seed" in found.broken[0]
    assert "grpo.num_prompts_per_step" not in found.broken[0]
    assert check_text(alone, {"version": "0.6.0"}).broken == ()


def test_openrlhf_engines_must_fill_the_colocated_gpus():
    """OpenRLHF looks at this only after Ray has started."""
    _, placement, texts = next(case for case in random_cases("openrlhf", 20) if case[1].colocated)
    text = texts["run_openrlhf.sh"].replace(f"--vllm.num_engines '{placement.engine.replicas}'", "--vllm.num_engines '3'")
    assert any("3 engines" in said for said in check_text(text, {}).broken)


def test_check_prices_the_run_and_names_a_better_one(searched, tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(VERL.replace("rollout.tensor_model_parallel_size=2", "rollout.tensor_model_parallel_size=4"))
    found = CliRunner().invoke(cli, ["rl", "check", str(file), "--gpu", "h100", "--json"])
    assert found.exit_code == 0, found.output
    data = json.loads(found.output)
    assert data["fits"] and data["better"]["step_seconds"] < data["run"]["step_seconds"]
    assert data["better"]["engine"]["tp"] < 4
    shown = CliRunner().invoke(cli, ["rl", "check", str(file), "--gpu", "h100"])
    assert f"{data['run']['step_seconds']:,.1f} s" in shown.output


def test_exit_codes_of_check(tmp_path):
    file = tmp_path / "run.sh"
    for text, code in (
        (VERL.replace("utilization=0.6", "utilization=1.5"), 2),
        (VERL.replace("7B", "72B"), 3),
        ("echo hello", 2),
        ("", 2),
    ):
        file.write_text(text)
        assert CliRunner().invoke(cli, ["rl", "check", str(file)]).exit_code == code, text
    assert CliRunner().invoke(cli, ["rl", "check", str(tmp_path / "none.sh")]).exit_code == 2
    assert CliRunner().invoke(cli, ["rl", "--model", "qwen2.5-7b", "check", str(file)]).exit_code == 2


def test_a_step_of_the_log_calibrates_its_phases(tmp_path):
    run, log, out = tmp_path / "run.sh", tmp_path / "log.txt", tmp_path / "cal.json"
    run.write_text(VERL)
    before = check_text(VERL, {"response_length": 900, "prompt_length": 150}).priced
    seconds = {
        "gen": 2.0 * before.phases.generation,
        "old_log_prob": 1.5 * before.phases.logprob,
        "ref": 1.5 * before.phases.reference,
        "update_actor": 0.8 * before.phases.training,
    }
    words = [f"timing_s/{name}:{value:.4f}" for name, value in seconds.items()]
    line = f"step:{{}} - prompt_length/mean:150.0 - response_length/mean:900.0 - {' - '.join(words)} - timing_s/step:9999.0\n"
    log.write_text(line.format(1).replace("timing_s/gen:", "timing_s/gen:9") + line.format(2) + line.format(3))
    made = CliRunner().invoke(cli, ["rl", "calibrate", str(log), "--run", str(run), "--output", str(out)])
    assert made.exit_code == 0, made.output
    data = json.loads(out.read_text())
    assert data["generation"] == pytest.approx(2.0, rel=0.01) and data["forward"] == pytest.approx(1.5, rel=0.01)
    assert data["training"] == pytest.approx(0.8, rel=0.01) and data["steps"] == 2
    words = ["rl", "check", str(run), "--response-length", "900", "--prompt-length", "150", "--calibration", str(out), "--json"]
    after = json.loads(CliRunner().invoke(cli, words).output)["run"]["phases"]
    assert after["generation"] == pytest.approx(seconds["gen"], rel=0.01)
    assert after["training"] == pytest.approx(seconds["update_actor"], rel=0.01)
    asked = CliRunner().invoke(cli, ["rl", "--model", "qwen2.5-7b", "--gpus", "8", "--calibration", str(out), "--json"])
    plain = CliRunner().invoke(cli, ["rl", "--model", "qwen2.5-7b", "--gpus", "8", "--json"])
    assert json.loads(asked.output)["placements"][0]["step_seconds"] > json.loads(plain.output)["placements"][0]["step_seconds"]


@pytest.mark.parametrize("text", [
    "{}", "[]", "{", '{"kind": "x"}', '{"kind": "autoconfig post-training calibration", "a": 1}',
    *(json.dumps({"kind": "autoconfig post-training calibration", "framework": "verl", "model": "a", "gpu": "b", "steps": 1,
                  "training": value}) for value in (math.nan, math.inf, -1, 10**400)),
])  # fmt: skip
def test_a_file_that_is_no_calibration_is_refused(tmp_path, text):
    file = tmp_path / "cal.json"
    file.write_text(text)
    found = CliRunner().invoke(cli, ["rl", "--model", "qwen2.5-7b", "--gpus", "8", "--calibration", str(file)])
    assert found.exit_code == 2 and "Traceback" not in found.output


OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-7B --actor_num_gpus_per_node 8 --ref_num_gpus_per_node 8 "
    "--vllm_num_engines 8 --colocate_all_models --vllm_enable_sleep --deepspeed_enable_sleep --zero_stage 3 --packing_samples "
    "--vllm_gpu_memory_utilization 0.6 --gradient_checkpointing --adam_offload --advantage_estimator group_norm "
    "--n_samples_per_prompt 8 --rollout_batch_size 128 --train_batch_size 1024 --micro_train_batch_size 1 --max_len 4096 "
    "--max_new_tokens 3072 --micro_rollout_batch_size 1\n"
)
TRL = (
    "model_name_or_path: qwen2.5-1.5b\nnum_generations: 8\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 4\n"
    "generation_batch_size: 256\nmax_completion_length: 1024\nuse_vllm: true\nvllm_mode: colocate\n"
)


def test_a_line_of_openrlhf_calibrates_generation_passes_and_training(tmp_path):
    run, log = tmp_path / "run.sh", tmp_path / "log.txt"
    run.write_text(OPENRLHF)
    told = check_text(OPENRLHF, {"response_length": 700}).priced.phases
    seconds = {
        "timing/make_experience": 1.5 * (told.logprob + told.reference),
        "timing/ppo_train": 0.8 * told.training,
        "timing/broadcast": told.weight_sync,
        "timing/generation": 2.0 * told.generation,
    }
    seconds = {name: float(value) for name, value in seconds.items()}
    status = {"response_length": 700.0, **seconds, "timing/step_total": sum(seconds.values())}
    log.write_text(f"\u2728 Global step 1: {status}\n\u2728 Global step 2: {status}\n", encoding="utf-8")
    found, _, measured = calibrate(log, run, {})
    assert measured.steps == 1 and found.lengths == {"response_length": 700}
    assert found.generation == pytest.approx(2.0, rel=0.01) and found.training == pytest.approx(0.8, rel=0.01)
    assert found.forward == pytest.approx(1.5, rel=0.01)


def test_optimizer_steps_of_trl_scale_every_phase_alike(tmp_path):
    """256 samples in updates of 128: a step is two of the printed."""
    run, log = tmp_path / "grpo.yaml", tmp_path / "log.txt"
    run.write_text(TRL)
    checked = check_text(TRL, {"gpus": 8, "response_length": 400})
    assert checked.job.updates == 2
    step_time = float(1.4 * checked.priced.phases.total / 2)
    printed = {"loss": 0.1, "num_tokens": 9000.0, "completions/mean_length": 400.0, "step_time": step_time, "epoch": 0.1}
    log.write_text(f"{printed}\n{printed}\n")
    found, _, _ = calibrate(log, run, {"gpus": 8})
    factors = found.generation, found.forward, found.training, found.other
    assert factors == pytest.approx((1.4,) * 4, rel=0.01)


def test_the_release_of_a_trl_file_is_the_newest_that_takes_most_of_its_keys():
    """max_prompt_length and torch_dtype are gone from 1.0; a key that no release takes is still said."""
    assert check_text(TRL, {"gpus": 8}).version == "1.16.0"
    older = check_text(f"{TRL}max_prompt_length: 512\ntorch_dtype: bfloat16\n", {"gpus": 8})
    assert older.version == "0.24.0" and older.legal and older.priced.memory.chance > 0
    assert any("newest release that takes most" in one for one in sentences(older.run.notes))
    said = check_text(f"{TRL}max_prompt_length: 512\n", {"gpus": 8, "version": "1.16.0"})
    assert not said.legal and said.unknown[0].field == "max_prompt_length"
    assert not check_text(f"{TRL}max_completion_lenght: 512\n", {"gpus": 8}).legal


def test_a_server_is_taken_to_have_gpus_of_its_own_and_megatron_swift_is_refused():
    found = check_text(TRL.replace("colocate", "server"), {"gpus": 8})
    assert (found.run.placement.colocated, found.run.engine_gpus) == (False, 1)
    assert any("the server, which another command starts, is taken to have 1 GPU" in one for one in sentences(found.run.notes))
    with pytest.raises(AutoconfigError, match="Megatron-SWIFT"):
        check_text("megatron rlhf --model Qwen/Qwen2.5-7B --rlhf_type grpo --num_generations 8\n", {"gpus": 8})


def test_export_writes_files_and_keeps_foreign_ones(tmp_path):
    words = ["rl", "--model", "qwen2.5-7b", "--gpus", "8", "--framework", "nemo-rl", "--export", str(tmp_path)]
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert "NeMo-RL 0.7.0" in (tmp_path / "grpo.yaml").read_text()
    (tmp_path / "grpo.yaml").write_text("mine\n")
    assert CliRunner().invoke(cli, words).exit_code == 2 and (tmp_path / "grpo.yaml").read_text() == "mine\n"
    assert CliRunner().invoke(cli, [*words, "--force"]).exit_code == 0


def test_keys_of_releases_have_their_source():
    for name, told in json.loads((DATA / "post_training_keys.json").read_text()).items():
        if name != "about":
            assert told["source"] and told["versions"], name


OWN = {"model_type": "own", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16,
       "vocab_size": 32000, "intermediate_size": 2048, "max_position_embeddings": 8192, "hidden_act": "silu"}  # fmt: skip
RL = ("rl", "--gpus", "8", "--prompts", "64", "--response-length", "200", "--max-response-length", "1000", "--group-size", "8")


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("model", "names"), [("qwen2.5-7b", "Qwen/Qwen2.5-7B"), ("", ""), ("gpt3-1.7b", "")])
def test_files_name_a_checkpoint(autoconfig, tmp_path, framework, model, names):
    """The hub's id of a catalogue name, the folder whose config.json was given, else that it is to be given."""
    like = () if model else ("--like", "llama")
    if not model:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "config.json").write_text(json.dumps(OWN))
        model = names = str(tmp_path / "own")
    folder = tmp_path / "out"
    done = autoconfig.run(*RL, "--model", model, *like, "--framework", framework, "--export", str(folder))
    assert done.exit_code == 0, done.stderr
    text = "".join(path.read_text() for path in folder.glob("[!.]*"))
    file = next(path for path in folder.glob("[!.]*") if path.name != "accelerate.yaml")
    check = ("rl", "check", str(file), "--gpus", "8")
    if names:
        assert names in text and "No checkpoint" not in done.stderr
        assert autoconfig.run(*check, *like).exit_code == 0
    else:
        assert "give the model: a folder, or its id on the hub" in text and "No checkpoint of gpt3-1.7b is known" in done.stderr
        assert "--model" in autoconfig.run(*check).stderr
        assert autoconfig.run(*check, "--model", model).exit_code == 0


@tabled
def test_what_cannot_be_written_is_refused_before_the_search(autoconfig, tmp_path, monkeypatch, framework, algorithm, said):
    monkeypatch.setattr("autoconfig.post_training.answer.answer", lambda given: pytest.fail("searched"))
    asked = (*RL, "--model", "qwen2.5-7b", "--framework", framework, "--algorithm", algorithm)
    refused = autoconfig.run(*asked, "--export", str(tmp_path / "out"))
    assert refused.exit_code == 2 and said in " ".join(refused.stderr.split()), refused.stderr


def test_defaults_of_a_framework_are_said_as_such(autoconfig):
    shown = " ".join(autoconfig.run("rl", "--model", "qwen2.5-7b", "--gpus", "8", "--framework", "nemo-rl").stdout.split())
    for words in ("prompts 64, as published runs of nemo-rl have it (--prompts)", "minibatch 2,048 (--minibatch)"):
        assert words in shown
    shown = " ".join(autoconfig.run("rl", "--model", "qwen2.5-7b", "--gpus", "24").stdout.split())
    assert "prompts 513, the 512 of verl's published runs, and more until they divide over 24 GPUs (--prompts)" in shown


def test_an_engine_of_verl_takes_its_data_parallel_ranks_too():
    """verl 0.9.1, workers/rollout/replica.py: the world of an engine is tp x dp x pp."""
    key = "actor_rollout_ref.rollout.data_parallel_size"
    found = check_text(VERL, {"gpu": "h100", "set": [f"{key}=8"]})
    assert any("an engine takes 16 GPUs, and 8 do not hold" in text for text in found.broken)
    legal = check_text(VERL, {"gpu": "h100", "set": [f"{key}=4"]})
    assert legal.legal and any("4 data-parallel ranks priced as" in note for note in sentences(legal.run.notes))


def test_one_printed_step_is_enough_and_lines_are_read_as_diagnose_reads_them():
    """Ray's prefix, numpy's numbers and powers of ten of verl; the first of several steps is left out; NeMo-RL's block."""
    line = "(TaskRunner pid=7) step:{} - timing_s/gen:{} - timing_s/old_log_prob:1.1e+01 - timing_s/step:99.0 - {}\n"
    lengths = "prompt_length/mean:100.5 - response_length/mean:np.float64(812.4)"
    one = log_of(read_texts({"log": line.format(1, "45.2", lengths)}))
    assert (one.framework, one.steps, one.seconds) == ("verl", 1, {"generation": 45.2, "logprob": 11.0, "step": 99.0})
    assert (one.prompt_tokens, one.response_tokens) == (100, 812)
    three = log_of(read_texts({"log": "".join(line.format(i, 10 ** (4 - i), lengths) for i in (1, 2, 3))}))
    assert three.steps == 2 and three.seconds["generation"] == 55.0
    rows = ("Total step time: 147.24s", "generation: 84.2s (57.0%)", "policy_training: 28.00s (19.0%)")
    block = "Timing:\n" + "".join(f"  \u2022 {row}\n" for row in rows)
    nemo = log_of(read_texts({"log": block}), [398.0])
    assert nemo.seconds == {"generation": 84.2, "training": 28.0, "step": 147.24} and nemo.response_tokens == 398
    with pytest.raises(InputError, match="prints no step"):
        log_of(read_texts({"log": "loss 3.2\n"}))
