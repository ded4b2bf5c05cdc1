"""Scripts that start a real job: blends, containers, checkpoints and logs, seen by stand-ins that print what they are given."""

import math
import subprocess
import time
from pathlib import Path

import pytest
from autoconfig.specs.plan import parse_plan

from autoconfig.megatron.batch.scripts import LEARNING_RATES, learning_rate, sbatch_script, torchrun_script
from autoconfig.megatron.batch.time_limit import given_minutes, has_time
from autoconfig.training.price import Money, report_plan
from autoconfig.training.question import Request, understand

STAND_INS = {name: f'#!/bin/sh\necho "{name}: $@"\n' for name in ("torchrun", "docker", "srun")}
STAND_INS["scontrol"] = "#!/bin/sh\necho host0\n"


def scenario_of(model="llama3-8b", gpus=8, **more):
    return understand(Request(model=model, gpus=gpus, gpu="h100", **more)).scenario


@pytest.fixture
def start(tmp_path):
    """Runs a script with stand-ins in front of the path: (what was started, what was said)."""
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(script, code=0, **variables):
        (tmp_path / "train.sh").write_text(script)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
        done = subprocess.run(["bash", str(tmp_path / "train.sh")], capture_output=True, text=True, env=environment, timeout=60,
                              cwd=tmp_path, check=False)  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    return run


def torchrun(scenario, plan="tp=2,pp=1,mbs=1,sp=1"):
    return torchrun_script(scenario, parse_plan(plan, scenario.cluster.num_gpus), None)


def test_without_data_it_says_that_it_is_a_smoke_test(start):
    script = torchrun(scenario_of())
    out, said = start(script)
    assert "--mock-data" in out and "--train-iters 50" in out and "smoke test: 50 steps on mock data" in said
    assert "smoke test: 50 steps on mock data" in script
    out, said = start(script, DATA_PATH="/data/a", TOKENIZER_MODEL="/tok")
    assert "--mock-data" not in out and said == ""


def test_a_run_over_the_tokens_asked_for_has_their_steps_where_it_has_data(start):
    """1e12 tokens in steps of 8,192 x 512 are 238,418.6 steps."""
    scenario, plan = scenario_of(seq_length=8192, global_batch_size=512), parse_plan("tp=2,mbs=1,sp=1", 8)
    report = report_plan(scenario, plan, Money(tokens=1e12))
    for script in (torchrun_script(scenario, plan, report), sbatch_script(scenario, plan, report)):
        assert "the 238,419 steps" in script and f"{report.days_to_train:.3g} days" in script
        given = {"SLURM_JOB_NODELIST": "host0", "TOKENIZER_MODEL": "/tok", "VALID_DATA_PATH": "/v", "TEST_DATA_PATH": "/t"}
        for data in ("DATA_PATH", "TRAIN_DATA_PATH", "DATA_ARGS_PATH"):
            assert "--train-iters 238419 " in start(script, **given, **{data: "/a"})[0]
        assert "--train-iters 7 " in start(script, **given, DATA_PATH="/a", TRAIN_STEPS="7")[0]
        assert "--train-iters 50 " in start(script, **given)[0]
    even = report_plan(scenario, plan, Money(tokens=8192.0 * 512 * 3000))
    assert even.steps_to_train == 3000 and report_plan(scenario, plan).steps_to_train is None
    encoders = scenario_of("t5-3b")
    plan = parse_plan("tp=1,mbs=1", 8)
    script = torchrun_script(encoders, plan, report_plan(encoders, plan, Money(tokens=1e9)))
    assert f":-{math.ceil(1e9 / encoders.workload.tokens_per_step)}}}" in script and "smoke" not in script


def test_data_may_be_blended_split_and_listed_in_a_file(start):
    script = torchrun(scenario_of())
    out, _ = start(script, DATA_PATH="0.7 /data/a 0.3 /data/b", TOKENIZER_MODEL="/tok", DATA_CACHE_PATH="/shared/cache")
    assert "--data-path 0.7 /data/a 0.3 /data/b --split 99,1,0 --tokenizer-type HuggingFaceTokenizer" in out
    assert "--data-cache-path /shared/cache" in out and "--no-create-attention-mask-in-dataloader" in out
    out, _ = start(script, TRAIN_DATA_PATH="/a /b", VALID_DATA_PATH="/v", TEST_DATA_PATH="/t", TOKENIZER_MODEL="/tok")
    assert "--train-data-path /a /b --valid-data-path /v --test-data-path /t" in out and "--split" not in out
    assert "--data-args-path /words" in start(script, DATA_ARGS_PATH="/words", TOKENIZER_MODEL="/tok")[0]


def test_a_container_is_dockers_on_a_node_and_pyxis_under_slurm(start, tmp_path):
    scenario = scenario_of()
    out, _ = start(torchrun(scenario), CONTAINER_IMAGE="image:1", CONTAINER_MOUNTS="/data:/data,/ck:/ck")
    assert out.startswith("docker: run ") and "--volume /data:/data --volume /ck:/ck image:1 torchrun --nproc-per-node 8" in out
    assert "--no-rope-fusion" not in out  # the container has Transformer Engine, whatever the host has
    assert "--gpus all" in out and "--env PYTORCH_CUDA_ALLOC_CONF" in out
    script = sbatch_script(scenario, parse_plan("tp=2,mbs=1", 8), None)
    out, _ = start(script, SLURM_JOB_NODELIST="host[0-1]", CONTAINER_IMAGE="image:1", CONTAINER_MOUNTS="/data:/data")
    where = f"{tmp_path}:{tmp_path},/data:/data --container-workdir {tmp_path}"
    assert f"srun: --kill-on-bad-exit=1 --container-image image:1 --container-mounts {where} bash -c" in out
    assert "--container" not in start(script, SLURM_JOB_NODELIST="host[0-1]")[0]


BOTH = (
    lambda scenario: torchrun(scenario),
    lambda scenario: sbatch_script(scenario, parse_plan("tp=2,mbs=1", 8), None),
)


def mounted(out):
    """source -> target of what the container is given."""
    words = out.split()
    given = [words[place + 1] for place, word in enumerate(words) if word == "--volume"]
    if "--container-mounts" in words:
        given = words[words.index("--container-mounts") + 1].split(",")
    return dict(one.split(":")[:2] for one in given)


@pytest.mark.parametrize("write", BOTH)
def test_a_container_sees_every_path_outside_the_folder(start, tmp_path_factory, tmp_path, write):
    """What lies below the folder, or below a target of the user's mounts, is left to them; folders to write are made."""
    far = tmp_path_factory.mktemp("far")
    for name in ("core", "data", "words", "tok", "own"):
        (far / name).mkdir()
    (far / "list").write_text(f"0.5 {far}/words/a 0.5 {far}/own/b")
    (tmp_path / "near").mkdir()
    given = {"CONTAINER_IMAGE": "i", "SLURM_JOB_NODELIST": "host0", "TOKENIZER_MODEL": f"{far}/tok"}
    places = {"MEGATRON_PATH": f"{far}/core", "CHECKPOINT_DIR": f"{far}/ckpt/8b", "TENSORBOARD_DIR": "near/board"}
    own = {"CONTAINER_MOUNTS": f"/elsewhere:{far}/own:ro,/x:/y"}
    blend = f"0.7 {far}/data/a 0.3 near/b 0.1 {far}/own/c"
    out, _ = start(write(scenario_of()), **given, **places, **own, DATA_PATH=blend)
    wanted = {str(far / name): str(far / name) for name in ("core", "ckpt/8b", "data", "tok")}
    assert mounted(out) == {str(tmp_path): str(tmp_path), "/elsewhere": f"{far}/own", "/x": "/y", **wanted}
    assert (far / "ckpt" / "8b").is_dir() and f"--data-path {blend}" in out
    out, _ = start(write(scenario_of()), **given, **own, DATA_ARGS_PATH=f"{far}/list", DATA_CACHE_PATH=f"{far}/cache")
    wanted = {str(far / name): str(far / name) for name in ("list", "words", "cache", "tok")}
    assert mounted(out) == {str(tmp_path): str(tmp_path), "/elsewhere": f"{far}/own", "/x": "/y", **wanted}
    out, _ = start(write(scenario_of()), CONTAINER_IMAGE="i", SLURM_JOB_NODELIST="host0", MEGATRON_PATH="/opt/none/Megatron-LM")
    assert mounted(out) == {str(tmp_path): str(tmp_path)}, "Megatron-LM lies in the image"


@pytest.mark.parametrize("write", BOTH)
@pytest.mark.parametrize(("name", "value"), [
    ("DATA_PATH", "/no/such/data/a"), ("TRAIN_DATA_PATH", "1 /no/such/data/a"), ("DATA_ARGS_PATH", "/no/such/data"),
    ("TOKENIZER_MODEL", "/no/such/data"), ("CHECKPOINT_DIR", "/proc/no/such/data"),
])  # fmt: skip
def test_a_path_that_no_container_would_see_stops_the_script(start, write, name, value):
    """With its name, and before anything starts; without a container nothing is asked."""
    given = {"SLURM_JOB_NODELIST": "host0", "TOKENIZER_MODEL": "meta-llama/Meta-Llama-3-8B", name: value}
    out, said = start(write(scenario_of()), code=1, CONTAINER_IMAGE="i", **given)
    assert out == "" and f"{name}: /" in said and "/no/such/data" in said
    assert "torchrun" in start(write(scenario_of()), **given)[0]


@pytest.mark.parametrize(("text", "minutes"), [
    ("--time=90", 90), ("--time=90:30", 90), ("-t 1:30:00", 90), ("--time 2-0", 2880), ("--time=1-2:03", 1563),
    ("--time=1-02:03:04", 1563), ("--time=UNLIMITED", None), ("--qos=low", None),
])  # fmt: skip
def test_time_limits_as_sbatch_takes_them(text, minutes):
    assert given_minutes(["--qos=x", text]) == minutes and has_time([text]) == (not text.startswith("--qos"))


def test_the_time_limit_is_that_of_the_tokens(start):
    """The steps at the slow end of the band, and 30 minutes; what the user gives stands, and the cut is said."""
    scenario, plan = scenario_of(seq_length=8192, global_batch_size=512), parse_plan("tp=2,mbs=1,sp=1", 8)
    report = report_plan(scenario, plan, Money(tokens=1e12))
    minutes = 30 + math.ceil(238_419 * report.confidence.step_seconds_p95 / 60)
    limit = f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}"
    script = sbatch_script(scenario, plan, report)
    assert f"#SBATCH --time={limit}\n" in script and f"238,419 steps take {report.days_to_train:.3g} days" in script
    assert "#SBATCH --mem=0" in script and "#SBATCH --time" not in torchrun_script(scenario, plan, report)
    smoke = sbatch_script(scenario, plan, report_plan(scenario, plan))
    assert f"#SBATCH --time={30 + math.ceil(50 * report.confidence.step_seconds_p95 / 60)}\n" in smoke
    cut = sbatch_script(scenario, plan, report, ("--time=2-0", "--qos=low"))
    assert cut.count("#SBATCH --time") == 1 and "#SBATCH --time=2-0\n" in cut and f"#SBATCH --time={limit}" not in cut
    assert f"about {math.ceil(minutes / (2880 - 45))} times with --dependency=singleton" in " ".join(cut.split("\n# "))
    assert "singleton" not in sbatch_script(scenario, plan, report, ("--time=999-0",))


def test_a_job_saves_before_its_time_limit(start):
    """Slurm says when the job ends; 15 minutes before, Megatron-LM is to save and to end."""
    script = sbatch_script(scenario_of(), parse_plan("tp=2,mbs=1", 8), None)
    ends = {"SLURM_JOB_NODELIST": "host0", "SLURM_JOB_END_TIME": str(int(time.time()) + 7200 + 30)}
    assert "--exit-duration-in-mins 105" in start(script, **ends, CHECKPOINT_DIR="ckpt")[0]
    assert "--exit-duration-in-mins" not in start(script, **ends)[0], "nothing is saved"
    assert "--exit-duration-in-mins" not in start(script, SLURM_JOB_NODELIST="host0", CHECKPOINT_DIR="ckpt")[0]


def test_ranks_collect_garbage_together(start):
    words = "--distributed-timeout-minutes 60 --manual-gc --manual-gc-interval 100"
    assert words in start(torchrun(scenario_of()))[0] and words not in start(torchrun(scenario_of(gpus=1), "tp=1,mbs=1"))[0]
    known = (Path(__file__).parents[2] / "autoconfig" / "data" / "megatron_arguments.csv").read_text()
    assert all(f"{word}," in known for word in (*words.split(), "--exit-duration-in-mins") if word.startswith("--"))


def test_learning_rate_and_warm_up_are_those_of_the_size(start):
    """Brown et al. 2020, Table 2.1 and appendix B."""
    rates = [float(learning_rate(scenario_of(model))[0]) for model in ("gpt3-126m", "1.3b", "13b", "175b", "gpt3-530b")]
    assert rates == pytest.approx([6e-4, 2e-4, 1e-4, 6e-5, 6e-5], rel=0.02)
    assert [rate for _, rate in LEARNING_RATES] == sorted((rate for _, rate in LEARNING_RATES), reverse=True)
    between, said = learning_rate(scenario_of("llama3-70b"))
    assert 6e-5 < float(between) < 1e-4 and "70.6 B parameters, interpolated between GPT-3's of 13 B and 175 B" in said
    assert "GPT-3's of 175 B" in learning_rate(scenario_of("gpt3-530b"))[1]
    script = torchrun(scenario_of(seq_length=8192, global_batch_size=512))  # 4.2 million tokens a step: 90 steps
    assert "--lr-warmup-iters 5 " in start(script)[0], "a tenth of the smoke test's 50 steps"
    assert "--lr-warmup-iters 90 " in start(script, TRAIN_STEPS="100000")[0]
    assert "--lr 3e-4 " in start(script, LEARNING_RATE="3e-4")[0]


def test_what_the_prediction_assumes_is_switched_on(start):
    moe = torchrun(scenario_of("qwen3-30b-a3b"), "tp=1,ep=8,mbs=1")
    assert "--moe-permute-fusion" in start(moe, PERMUTE_FUSION="yes")[0]
    assert "--moe-permute-fusion" not in start(moe, PERMUTE_FUSION="no")[0] and "--moe-token-dispatcher-type" in start(moe)[0]
    assert "--moe-permute-fusion" not in start(torchrun(scenario_of()))[0]
    graphs = torchrun(scenario_of(switches={"cuda_graphs": "attn"}))
    assert "expandable_segments" in torchrun(scenario_of()) and "expandable_segments" not in graphs
    local = scenario_of(software="megatron-local")
    assert "--no-create-attention-mask-in-dataloader" not in start(torchrun(local))[0], "its kernels read the mask"
