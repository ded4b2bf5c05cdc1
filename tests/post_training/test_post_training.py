"""Post-training: lengths, phases of a step, memory, and predictions of tables of runs."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from autoconfig.specs.errors import GIB, UnknownNameError
from autoconfig.specs.hardware.cluster import load_gpu
from autoconfig.specs.models.model_catalogue import load_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.plan import TrainPlan
from autoconfig.specs.remarks import sentences
from autoconfig.specs.serve_plan import EnginePlan

from autoconfig.post_training.frameworks import STANDARD_90, PhaseConstants, load_algorithm, load_framework, shipped_constants
from autoconfig.post_training.generation import generate
from autoconfig.post_training.job import USUAL_HOST_BYTES, Placement, PostTrainingJob
from autoconfig.post_training.memory import PhaseMemory, phase_memory
from autoconfig.post_training.passes import microbatches, pass_seconds, training_seconds
from autoconfig.post_training.price import priced_phases, scaled
from autoconfig.post_training.samples.lengths import ResponseLengths
from autoconfig.runs.post_training_row import read_case
from autoconfig.runs.predict_post_training import predict_file, predict_rows
from validation.fit.post_training_fit import errors as measured_over_priced
from validation.fit.post_training_fit import samples_of, scatter
from validation.published import published_rows

JOB = PostTrainingJob(
    policy=load_model("qwen2.5-7b"),
    algorithm=load_algorithm("grpo"),
    framework=load_framework("verl"),
    gpu=load_gpu("h100"),
    prompts=512,
    group=16,
    prompt_tokens=100.0,
    responses=ResponseLengths(mean=1600.0, cap=8192),
    minibatch=512,
)
PLACED = Placement(
    train=TrainPlan(tp=2, pp=1, dp=4, mbs=1, sp=True), engine=EnginePlan(tp=1, replicas=8), tokens_per_gpu=10_240
)


def test_lengths_have_their_mean_and_their_cap():
    for mean, cap, sigma in ((1600.0, 8192, 0.6), (3000.0, 4000, 0.6), (800.0, 20_480, 1.2)):
        found = ResponseLengths(mean=mean, cap=cap, sigma=sigma).sample(4000)
        assert found.mean() == pytest.approx(mean, rel=0.01)
        assert found.max() <= cap
    assert ResponseLengths(mean=256.0, cap=256).sample(10).tolist() == [256.0] * 10


def test_generation_takes_at_least_the_longest_response_and_grows_with_work():
    found = generate(JOB, PLACED)
    alone = generate(replace(JOB, prompts=8, group=1), PLACED)
    assert found.seconds > alone.seconds > 0
    assert 0 < found.tail_s < found.seconds
    longer = replace(JOB, responses=ResponseLengths(mean=3200.0, cap=8192))
    assert generate(longer, PLACED).seconds > 1.2 * found.seconds


def test_an_engine_must_hold_the_longest_sample_not_only_those_of_mean_length():
    assert generate(JOB, PLACED).fits
    room = generate(JOB, PLACED).memory
    most = int(room.kv_pool_bytes / room.kv_bytes_per_sequence * JOB.tokens)
    assert generate(replace(JOB, responses=replace(JOB.responses, cap=most - 1_000)), PLACED).fits
    assert not generate(replace(JOB, responses=replace(JOB.responses, cap=most + 1_000)), PLACED).fits


def test_prefix_cache_prefills_a_prompt_once_for_its_group():
    long = replace(JOB, prompt_tokens=4000.0, longest_prompt=4000, prompts=256)
    apart = replace(long, prompts=long.samples, group=1, minibatch=512)
    assert generate(long, PLACED).seconds < 0.95 * generate(apart, PLACED).seconds


def test_frameworks_with_static_batches_generate_one_after_the_other():
    """NeMo-Aligner: 8 sequences a batch; twice the sequences of a batch take about half as long."""
    aligner = load_framework("nemo-aligner")
    eights = generate(replace(JOB, framework=aligner), PLACED).seconds
    sixteens = generate(replace(JOB, framework=replace(aligner, rollout_batch=16)), PLACED).seconds
    assert eights > 5.0 * generate(JOB, PLACED).seconds
    assert eights / sixteens == pytest.approx(2.0, rel=0.35)


def test_packing_saves_what_padding_pads():
    packed, padded = microbatches(JOB, PLACED.train, 512, 10_240), microbatches(JOB, PLACED.train, 512, 0)
    tokens = [cut.count * cut.sequences * cut.seq_length for cut in (packed, padded)]
    assert tokens[0] == pytest.approx(128 * 1700)
    assert tokens[1] == pytest.approx(128 * JOB.longest)
    assert pass_seconds(JOB, replace(PLACED, tokens_per_gpu=0)) > 3.0 * pass_seconds(JOB, PLACED)


def test_a_forward_pass_is_a_third_of_training_without_recomputation():
    assert 0.2 < pass_seconds(JOB, PLACED) / training_seconds(JOB, PLACED) < 0.4


def test_phases_follow_the_algorithm():
    ppo = replace(JOB, algorithm=load_algorithm("ppo"), critic=JOB.policy)
    phases, _ = priced_phases(ppo, PLACED)
    assert phases.values > 0 and phases.critic_training == training_seconds(JOB, PLACED) < phases.training
    dapo, _ = priced_phases(replace(JOB, algorithm=load_algorithm("DAPO multi-turn tools")), PLACED)
    assert dapo.reference == 0 and dapo.values == 0 and dapo.logprob > 0
    sft, generation = priced_phases(replace(JOB, algorithm=load_algorithm("sft")), PLACED)
    assert generation is None and sft.generation == sft.logprob == sft.weight_sync == 0


def test_a_step_is_the_sum_or_the_longer_side():
    phases, _ = priced_phases(JOB, PLACED)
    nothing_else = PhaseConstants(fixed_s=0.0, seconds_per_sample=0.0, seconds_per_gb=0.0, split_seconds_per_gb=0.0)
    sync = scaled(JOB, PLACED, phases, nothing_else)
    assert sync.total == pytest.approx(
        phases.generation + phases.logprob + phases.reference + phases.training + phases.weight_sync
    )
    ahead = scaled(JOB, replace(PLACED, staleness=1), phases, nothing_else)
    rest = phases.logprob + phases.reference + phases.training
    assert ahead.total == pytest.approx(max(phases.generation, rest) + phases.weight_sync)


def test_unknown_names_say_what_there_is():
    with pytest.raises(UnknownNameError, match="verl"):
        load_framework("colossal-chat")
    with pytest.raises(UnknownNameError, match="grpo"):
        load_algorithm("alphazero")


ROW = {"policy_model": "Qwen/Qwen2.5-7B-Instruct", "gpus": "8", "gpu": "H100", "framework": "verl", "algorithm": "GRPO"}


def test_measured_columns_kind_and_notes_are_never_read():
    measured = {"step_s": "1", "gen_s": "x", "mfu": "0.5", "kind": "oom", "notes": "eager", "source": "y", "peak_mem_gb": "1"}
    one, other = predict_rows([ROW, {**ROW, **measured}])
    assert {**one.cells(), "row": ""} == {**other.cells(), "row": ""}


def test_every_row_with_a_model_and_gpus_gets_a_step():
    rows = [
        {**ROW, "policy_model": name, "gpus": gpus} for name in ("Some-Model-12B", "some-350m") for gpus in ("3", "28", "512")
    ]
    found = predict_rows(rows)
    assert all(p.step is not None and np.isfinite(p.step.seconds) for p in found), [p.note for p in found]
    assert all("not known" in p.note and "nearest in size" in p.note for p in found)
    assert all(predict_rows([{**ROW, column: "mystery"}])[0].failed for column in ("policy_model", "reward_model"))


def test_published_rows_are_predicted_and_few_lines_may_be_damaged(tmp_path):
    rows = list(published_rows("post_training_measurements"))
    named = [row for row in rows if row["policy_model"] and (row["gpus"] or row["gpus_train"])]
    found = predict_rows(named[::7])
    assert all("unknown model" in p.note for p in found if p.failed) and sum(p.failed for p in found) < 0.04 * len(found)
    odd = [
        {**ROW, key: text}
        for key in ("gpus", "prompts_per_step", "train_plan", "response_len_max")
        for text in ("-3", "1e99", "z")
    ]
    source = tmp_path / "in.csv"
    with source.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ROW, "prompts_per_step", "train_plan", "response_len_max"])
        writer.writeheader()
        writer.writerows(odd)
    predictions, _ = predict_file(source, tmp_path / "out.csv")
    assert not any("error of autoconfig's own" in p.note for p in predictions), [p.note for p in predictions]
    columns = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert columns.startswith(
        "row,id,pred_step_s,pred_step_s_p5,pred_step_s_p95,pred_gen_s,pred_logprob_s,pred_train_s,pred_weight_sync_s,pred_fits,pred_note"
    )


def test_offload_cells_say_where_the_optimizer_lives():
    """`optimizer fraction` updates that share on the host; what waits between phases is `offload`."""
    row = {**ROW, "train_backend": "megatron", "train_plan": "tp=2"}
    half, none, stays = (read_case({**row, "offload": text}).placement for text in ("optimizer fraction 0.5", "", "false"))
    assert half.train.offload == 0.5 and half.offload
    assert none.train.offload == 0.0 and none.offload and not stays.offload


def test_training_on_given_text_has_no_seconds_of_engines():
    sft = replace(JOB, algorithm=load_algorithm("sft"))
    phases, _ = priced_phases(sft, PLACED)
    assert scaled(sft, PLACED, phases, PhaseConstants()).other == 0.0


def test_a_micro_batch_that_is_not_said_is_one_that_fits():
    row = {**ROW, "policy_model": "Qwen/Qwen2.5-14B", "gpus": "4", "train_backend": "fsdp"}
    free, said = predict_rows([row, {**row, "micro_batch": "32768"}])
    assert free.fits is True and said.fits is False


def test_a_memory_share_that_is_not_said_holds_the_engines_weights():
    """438 GiB over 8 H100 are more than NeMo-RL's own 0.6 of 79 GiB; its recipe has 0.88 (grpo-qwen3-235b-32n8g-async-1off)."""
    row = {**ROW, "policy_model": "Qwen/Qwen3-235B-A22B", "gpus": "128", "framework": "nemo-rl", "rollout_plan": "tp=8"}
    shares = [read_case({**row, "gpu_mem_util": text}).placement.memory_share for text in ("", "0.6")]
    assert shares == [0.8, 0.6] and read_case({**row, "rollout_plan": "tp=16"}).placement.memory_share == 0.6
    small = {**row, "rollout_plan": "tp=1"}
    assert read_case(small).placement.memory_share == 0.6 and predict_rows([small])[0].fits is False


def test_recomputation_that_is_not_said_is_the_frameworks_default():
    """verl 0.9.1: Megatron's recompute_granularity is null, FSDP checkpoints activations."""
    megatron, sharded = {"train_backend": "megatron", "train_plan": "tp=2"}, {"train_backend": "fsdp"}
    said = {name: read_case({**ROW, **more}) for name, more in (("megatron", megatron), ("fsdp", sharded))}
    assert {name: str(case.placement.train.recompute) for name, case in said.items()} == {
        "megatron": "none",
        "fsdp": "full:uniform:1",
    }
    assert str(read_case({**ROW, **megatron, "recompute": "full"}).placement.train.recompute) == "full:uniform:1"
    other = read_case({**ROW, **megatron, "framework": "nemo-rl"})
    assert str(other.placement.train.recompute) == "full:uniform:1" and "recompute" in other.unsaid


def test_a_critic_beside_the_actor_takes_memory_of_its_own():
    """As much state as the actor's, of a model of its size; on nodes of its own none of the actor's."""
    ppo = replace(JOB, algorithm=load_algorithm("ppo"), critic=JOB.policy)
    beside, apart = (phase_memory(ppo, replace(PLACED, offload=False, critic_gpus=n), None) for n in (0, 8))
    grpo = phase_memory(JOB, replace(PLACED, offload=False), None)
    assert apart.training_bytes == pytest.approx(grpo.training_bytes)
    state = grpo.generation_bytes - phase_memory(replace(JOB, policy=JOB.policy), PLACED, None).generation_bytes
    assert 0.5 * state < beside.generation_bytes - apart.generation_bytes < state
    assert beside.training_bytes - apart.training_bytes == beside.generation_bytes - apart.generation_bytes
    hosted = [phase_memory(ppo, replace(PLACED, critic_gpus=n), None) for n in (0, 8)]
    assert hosted[0].training_bytes == hosted[1].training_bytes and hosted[0].host_bytes > 1.5 * hosted[1].host_bytes


def test_a_reference_that_waits_is_on_the_host():
    """As verl's ref.fsdp_config.param_offload: of 7.6 B parameters in 16 bits 15.2 GB a node, and nothing on the GPU."""
    placed = replace(PLACED, offload=False, train=TrainPlan(tp=2, pp=1, dp=4, mbs=1, sp=True))
    stays, waits = (phase_memory(JOB, replace(placed, reference_waits=one), None) for one in (False, True))
    ranks = total_parameters(JOB.policy) * 2.0 / 2
    assert waits.host_bytes - stays.host_bytes == pytest.approx(8 * ranks)
    assert stays.generation_bytes - waits.generation_bytes == pytest.approx(ranks)
    both = [phase_memory(JOB, replace(PLACED, offload=True, reference_waits=one), None).host_bytes for one in (False, True)]
    assert both[0] == both[1], "offloaded with training it waits there as well"


def test_log_probabilities_of_a_large_vocabulary_take_seconds_of_their_own():
    """20 bytes a logit: of 0.5B with 152,064 words a good part of a pass, of 7B little."""
    shares = []
    for name in ("qwen2.5-0.5b", "qwen2.5-7b"):
        job = replace(JOB, policy=load_model(name))
        phases, _ = priced_phases(job, PLACED)
        shares.append(phases.logprob / pass_seconds(job, PLACED) - 1.0)
        assert phases.training > training_seconds(job, PLACED)
    assert shares[0] > 0.1 and shares[0] > 3.0 * shares[1] > 0.0
    given = replace(JOB, algorithm=load_algorithm("sft"))
    assert priced_phases(given, PLACED)[0].training == training_seconds(given, PLACED)


def test_a_ratio_of_all_gpus_is_who_has_how_many():
    """OpenRLHF's benchmark of 2024-03: reference, reward, actor, critic, engines."""
    row = {**ROW, "framework": "openrlhf ray+vllm", "algorithm": "PPO", "gpus": "8", "train_backend": "deepspeed zero"}
    placed = read_case({**row, "placement": "split 1:1:2:2:2"}).placement
    assert (placed.train.world_size, placed.critic_gpus, placed.engine.gpus, placed.colocated) == (2, 2, 2, False)
    without = read_case({**row, "placement": "split 1:1:4:2"}).placement
    assert (without.train.world_size, without.critic_gpus, without.engine.gpus, without.colocated) == (4, 2, 4, True)
    other = read_case({**row, "placement": "split 1:1:4:4"})
    assert other.placement.train.world_size == 8 and not any("reference" in said for said in sentences(other.assumed))


def test_training_of_actor_and_critic_together_is_compared_with_both():
    """Its rows would else say that training takes five times as long as it does."""
    openrlhf = [s for s in samples_of(published_rows("post_training_measurements")) if "train_s" in s.measured]
    assert len(openrlhf) == 10 and all("train_actor_s" not in s.measured for s in openrlhf)
    for sample in openrlhf:
        told = measured_over_priced(sample, sample.priced)["train_s"]
        both = (sample.priced.training, sample.priced.critic_training)
        whole = max(both) if sample.placement.critic_gpus else sum(both)
        assert told == pytest.approx(np.log(sample.measured["train_s"] / whole))
    factor = np.exp(shipped_constants()["openrlhf"]["training"])
    assert 1.0 < factor < 2.5


def test_a_size_alone_is_the_nearest_decoder_and_is_said_to_be_missing():
    case = read_case({**ROW, "policy_model": "12B"})
    assert "model" in case.missing and 11e9 < total_parameters(case.job.policy) < 13e9
    assert "model" not in read_case({**ROW, "policy_model": "Qwen2-7B (a checkpoint of its shape)"}).missing


def test_hybrids_of_a_table_are_priced_themselves():
    assert read_case({**ROW, "policy_model": "Qwen/Qwen3-Next-80B-A3B-Instruct"}).job.policy.name == "qwen3-next-80b-a3b"
    assert not predict_rows([{**ROW, "policy_model": "nemotron-3-nano", "gpus": "32"}])[0].failed


def test_ties_and_the_chance_to_fit_of_each_phase(autoconfig):
    """The shown placements within 6 % of the first are marked; chances fall with the bytes, to one half at the limit."""
    asked = ("rl", "--model", "qwen2.5-7b", "--gpus", "16")
    found = autoconfig.json(*asked)
    steps = [one["step_seconds"] for one in found["placements"]]
    assert found["ties"] == sum(step <= 1.06 * steps[0] for step in steps) and 1 < found["ties"] < len(steps)
    shown = autoconfig.run(*asked).stdout
    assert sum(f" {number}=" in shown for number in range(1, 6)) == found["ties"]
    assert f"{found['ties']} placements are within 6%, a tie" in shown
    chances = [one["memory_gib"]["training_fit_probability"] for one in found["placements"]]
    taken = [one["memory_gib"]["training"] for one in found["placements"]]
    order = sorted(range(len(taken)), key=taken.__getitem__)
    assert [chances[i] for i in order] == sorted(chances, reverse=True) and max(chances) > min(chances) > 0.5


def test_the_chance_is_one_half_at_the_limit():
    memory = PhaseMemory(generation_bytes=60 * GIB, training_bytes=80 * GIB, device_bytes=80 * GIB, host_bytes=0.0,
                         host_limit_bytes=GIB, engine_holds_a_sequence=False, overhead_bytes=3 * GIB)  # fmt: skip
    assert memory.training_fit == pytest.approx(0.5) and memory.generation_fit == 0.0
    assert replace(memory, engine_holds_a_sequence=True).generation_fit > 0.99


def test_engines_of_a_row_run_in_the_mode_of_its_release():
    """enforce_eager is true in verl's configuration up to v0.5.0; only vLLM is given it there."""

    def graphs(framework: str, engine: str = "vllm") -> bool:
        return read_case({**ROW, "framework": framework, "rollout_engine": engine}).placement.cuda_graphs

    told = [graphs(name) for name in ("verl", "verl 0.4.0", "verl@0.5.0", "verl 0.6.0", "verl 0.10.0.dev0")]
    assert told == [True, False, False, True, True]
    assert graphs("verl 0.4.0", "sglang") is True


def test_a_band_holds_a_run_of_a_model_that_nobody_has_measured():
    """Of 19 errors 1 to 19 %, the quantile 0.9 (1 + 1/19) lies between the 18th and the 19th; of few it is the largest."""
    errors = [0.01 * n * (-1) ** n for n in range(1, 20)]
    assert 0.18 <= scatter(errors) * STANDARD_90 <= 0.19
    assert scatter([0.1, -0.3, 0.2]) * STANDARD_90 == pytest.approx(0.3)


def test_what_waits_on_a_host_beyond_its_memory_does_not_fit():
    """DeepSeek-V3 on 4 nodes of 8: training that waits takes 3.9 TiB of a host with 2."""
    held = {"generation_bytes": 60 * GIB, "training_bytes": 50 * GIB, "device_bytes": 80 * GIB, "overhead_bytes": GIB,
            "host_limit_bytes": USUAL_HOST_BYTES}  # fmt: skip
    small, large = (PhaseMemory(**held, host_bytes=size * GIB, engine_holds_a_sequence=True) for size in (1400, 3894))
    assert small.fits and not small.reason and small.chance > 0.9
    full = replace(small, host_bytes=0.95 * USUAL_HOST_BYTES / 1.25)  # a fourth more is there, Ray kills at 95 %
    assert full.fits and full.chance == pytest.approx(0.5)
    assert not large.fits and large.chance == 0.0
    assert "3,894 GiB wait on the host of each node, which is taken to have 2,048" in large.reason
    assert replace(large, host_limit_bytes=4096 * GIB).fits
    assert large.lacking > 1.0 > small.lacking


def test_cells_that_say_nothing_thousands_and_capitals_of_headers_are_read(tmp_path):
    plain = {"policy_model": "qwen2.5-7b", "gpu": "h100", "gpus": "8", "algorithm": "grpo", "framework": "verl"}
    plain |= {"prompts_per_step": "1024", "group_size": "8", "response_len_mean": "1000", "micro_batch": "", "recompute": ""}
    other = {**plain, "prompts_per_step": "1,024", "micro_batch": "n/a", "recompute": "nan", "response_len_max": "none"}
    other["gpus_train"] = "?"
    for name, row in (("plain", plain), ("other", {key.title(): text for key, text in other.items()})):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
            writer.writerow(row)
    first, _ = predict_file(tmp_path / "plain.csv", tmp_path / "out.csv")
    second, warning = predict_file(tmp_path / "other.csv", tmp_path / "out.csv")
    assert not warning and not first[0].failed and first[0].cells() == second[0].cells()
    odd = predict_rows([{**plain, "prompts_per_step": "1,02"}])
    assert odd[0].failed and "prompts_per_step='1,02' is not a number" in odd[0].note
