"""The first questions of eight kinds of users, in their words: which command, by what help, how many of them, which figures.

Each user may look at two pages of help (`autoconfig --help` names the command, its own `--help`, or `--help-all`, every option)
and type three commands. Figures are those of publishers and papers, or a sum by hand, with a tolerance beside them."""

import json
import math

import pytest
from command_line import run_in_process

import autoconfig as api
from autoconfig.client import Client
from tests.api.conftest import services  # noqa: F401 (a fixture)

COMMANDS = 3
KEY_SCOPES = ("--scope", "read", "--scope", "plan")


class User:
    """Someone at a terminal."""

    def __init__(self):
        self.typed = 0

    def types(self, *words, exit_code=0):
        """One command: what it prints. Its name and options are found in help first."""
        self.typed += 1
        assert self.typed <= COMMANDS, words
        name = words[:2] if words[1] in ("check", "create") else words[:1]
        assert f"\n  {name[0]} " in run_in_process("--help").stdout, name
        short = run_in_process(*name, "--help").stdout
        whole = run_in_process(*name, "--help-all").stdout if "--help-all" in short else ""
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert f"{option} " in short + whole or f"{option}\n" in short + whole, (option, "is not in the help")
        run = run_in_process(*words)
        assert run.exit_code == exit_code, run.output
        return run.stdout

    def asks(self, *words, exit_code=0):
        """The same as JSON."""
        return json.loads(self.types(*words, "--json", exit_code=exit_code))


@pytest.fixture
def user():
    return User()


def test_dense_training(user, tmp_path):
    """Asks: "How do I run Llama 3 70B in fp8 on 64 H100, is NVIDIA's layout as good?" NVIDIA's table has 1,621 tokens/s/GPU
    with TP4 PP8 VPP5 there (a batch of its own); our first plan may be better by as much as search gains, 15 %."""
    model = ("--model", "llama3-70b", "--gpus", "64", "--precision", "fp8")
    first = user.asks("search", *model, "--tokens", "2T", "--export", str(tmp_path / "run"))["plans"][0]
    assert {"train.sh", "train.sbatch", "plan.json"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert first["days_to_train"] == pytest.approx(2e12 / (64 * first["tokens_per_second_per_gpu"]) / 86_400)
    theirs = user.asks("explain", *model, "tp=4,pp=8,vpp=5,mbs=1,sp=1")
    assert theirs["tokens_per_second_per_gpu"] == pytest.approx(1621, rel=0.05) and theirs["fits"]
    assert 1.0 <= first["tokens_per_second_per_gpu"] / 1621 < 1.15


def test_a_mixture_on_blackwell(user):
    """Asks: "DeepSeek-V3 on 256 GB200?" NVIDIA's tables: 4,735 to 4,969 tokens/s/GPU with HybridEP, graphs and fused experts,
    which are the default now (3,207 without), so an answer without an option for software."""
    where = ("--gpus", "256", "--gpu", "gb200", "--precision", "mxfp8")
    found = user.asks("search", "--model", "deepseek-v3", *where, "--global-batch-size", "4096")
    settings, first = found["run_settings"], found["plans"][0]
    assert first["tokens_per_second_per_gpu"] == pytest.approx(math.sqrt(4735 * 4969), rel=0.15)
    assert settings["dispatcher"] == "hybridep" and settings["cuda_graphs"] and settings["fused_experts"]
    low, high = first["confidence"]["step_seconds_p5"], first["confidence"]["step_seconds_p95"]
    assert low < 4096 * 4096 / 256 / 4850 < high, "the band holds the published step"


def test_fine_tuning(user):
    """Asks: "Qwen2.5 7B on a 4090, 32B on it in 4 bits, all of 7B on one A100?" By hand: 7.6 B weights in 16 bits are 14.2
    GiB; Dettmers et al. 2023 train 33 B on one card of 24 GB and 65 B on 48 in NF4."""
    card = ("--gpus", "1", "--gpu", "rtx4090", "--peft", "lora", "--format", "trl")
    adapters = user.asks("search", "--model", "qwen2.5-7b", *card)["plans"][0]
    assert 14.2 < adapters["memory"]["peak_gib"] < 22 and adapters["confidence"]["fit_probability"] > 0.9
    four_bits = user.asks("search", "--model", "qwen2.5-32b", *card, "--frozen-dtype", "nf4", "--seq-length", "512")
    assert 32.8e9 * 0.5 / 2**30 < four_bits["plans"][0]["memory"]["peak_gib"] < 24
    whole = ("--model", "qwen2.5-7b", "--gpus", "1", "--gpu", "a100-80gb", "--seq-length", "2048", "--global-batch-size", "16")
    full = user.asks("search", *whole, "--format", "trl")["plans"][0]
    assert 7.6e9 * 8 / 2**30 < full["memory"]["peak_gib"] < 76, "weights, gradients and both moments in 16 bits"


def test_serving(user, tmp_path):
    """Asks: "Does my vLLM command run, does it carry 5 requests a second of 8,000 and 500 tokens, else what does?" By hand: a
    token's cache is 80 layers x 2 x 8 heads x 128 x 2 bytes, a quarter of it on each GPU; prefill alone needs 3 GPUs at least:
    2 x 70.6 B x 8,000 x 5 FLOPs a second of 1,979 TFLOPS each, dense, in fp8."""
    script = tmp_path / "serve.sh"
    model = "meta-llama/Llama-3.3-70B-Instruct"
    script.write_text(
        f"vllm serve {model} --tensor-parallel-size 4 --quantization fp8 --max-model-len 8500 --max-num-seqs 256\n"
    )
    load = ("--isl", "8000", "--osl", "500")
    said = user.types("check", str(script), "--gpu", "h100", *load, "--concurrency", "32")
    assert "Starts." in said
    sequences = float(said.split("A sequence of 8,500 tokens takes")[1].split("GiB:")[1].split("at once")[0])
    assert sequences == pytest.approx(81, rel=0.03), "counted by hand in the review: 52.8 GiB over 0.65"
    question = ("deployments", "--model", "llama-3.3-70b-instruct", *load, "--rate", "5", "--engine", "vllm")
    miss = user.asks(*question, "--gpus", "4", exit_code=3)["miss"]
    enough = int(miss.split("--gpus ")[1].split()[0].rstrip(".;,"))
    assert 2 * 70.6e9 * 8000 * 5 / 1979e12 < 4 < enough <= 10
    assert user.asks(*question, "--gpus", str(enough))["deployments"][0]["requests_per_second"] >= 5
    fewer = {"model": "llama-3.3-70b-instruct", "gpus": enough - 1, "isl": 8000, "osl": 500, "rate": 5, "engine": "vllm"}
    assert api.deployments(**fewer).best is None, "one GPU fewer does not"


def test_a_day_of_requests(user, tmp_path):
    """Asks: "What carries this day, whose noon is sixty times its night?" What its busiest hour alone needs, not its mean."""
    quiet, busy = [hour * 3600 + 5.0 * i for hour in (0, 2) for i in range(720)], [3600 + i / 12 for i in range(12 * 3600)]
    files = {}
    for name, arrivals in (("day", sorted(quiet + busy)), ("noon", busy)):
        rows = (f"{second:.3f},3000,400" for second in arrivals)
        files[name] = tmp_path / f"{name}.csv"
        files[name].write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    model, limits = "llama-3.3-70b-instruct", {"ttft": 3, "tpot": 0.05, "goal": "gpus", "engine": "vllm", "simulate": 1}
    words = ("--ttft", "3s", "--tpot", "50ms", "--goal", "gpus", "--engine", "vllm", "--simulate", "1")
    day = user.asks("deployments", "--model", model, "--gpus", "16", "--trace", str(files["day"]), *words)
    loads = {"trace": str(files["noon"])}, {"isl": 3000, "osl": 400, "rate": 4.1}
    noon, mean = (api.deployments(model=model, gpus=16, **limits, **load) for load in loads)
    gpus = [plan["tensor_parallel_size"] * plan["num_replicas"] for one in day["deployments"][:1] if (plan := one["decode"])]
    alone, less = (one.best.decode.tensor_parallel_size * one.best.decode.num_replicas for one in (noon, mean))
    assert gpus == [alone] and less < alone and day["question"]["trace"]["sized_by"]["clock"].startswith("1:00:00 to 2:00:00")


def test_post_training(user, tmp_path):
    """Asks: "A GRPO step of 32B on 32 GPUs, and does my script survive 8 samples of up to 8,192 tokens at once?" Off-policy
    placements that gain less than the model can tell apart do not come first; 8 whole samples of 7B take 74 GiB of float32
    logits alone (65,536 x 152,064 x 4 bytes = 37 GiB, and their gradient), which no H100 has beside weights."""
    lengths = ("--prompt-length", "300", "--response-length", "2500")
    step = ("--prompts", "512", "--group-size", "8", "--minibatch", "1024", "--max-response-length", "8192")
    found = user.asks("rl", "--model", "qwen2.5-32b", "--gpus", "32", *step, *lengths)
    assert found["placements"][0]["staleness"] == 0 and found["placements"][0]["fits"]
    script, actor = tmp_path / "verl.sh", "actor_rollout_ref.actor"
    script.write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=512 data.max_prompt_length=1024 "
        f"data.max_response_length=8192 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct {actor}.ppo_mini_batch_size=128 "
        f"{actor}.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 "
        "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=2 "
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=8 trainer.nnodes=1 "
        "trainer.n_gpus_per_node=8\n"
    )
    said = user.types("rl", "check", str(script), "--gpu", "h100", *lengths, exit_code=3)
    assert "use_dynamic_bsz" in said, "the first thing to switch on"


@pytest.mark.service
def test_an_operator(user, services):  # noqa: F811
    """Asks: "A service with keys for my scheduler." Three commands: a key, the service (and its worker), and a question."""
    running = services("--workers", "1", "--keys", "--search-workers", "0")  # autoconfig serve, as a process
    made = user.types("keys", "create", "--name", "scheduler", *KEY_SCOPES, "--database", running.database)
    for command in ("serve", "worker"):
        assert f"\n  {command} " in run_in_process("--help").stdout
        assert "--database" in run_in_process(command, "--help").stdout
    client = Client(running.url, key=made.strip().split()[-1])
    found = client.plans(model="llama3-8b", gpus=8, gpu="h100")
    assert found.plans[0].short == api.search(model="llama3-8b", gpus=8, gpu="h100").best.short
    nothing = client.plans(model="llama3-70b", gpus=1000, global_batch_size=512)
    assert nothing.plans == () and nothing.body["nothing_legal"]["num_gpus"] == [960, 1024]


def test_python():
    """Asks: "A sweep over GPUs and counts in five lines, as a frame."""
    import pandas as pd

    rows = [
        {"gpu": gpu, "gpus": gpus, "tokens/s/GPU": best.tokens_per_second_per_gpu if (best := found.best) else None}
        for gpu in ("a100", "h100", "b200")
        for gpus in (4, 8, 24, 104)
        if (found := api.search(model="llama3-8b", gpu=gpu, gpus=gpus))
    ]
    table = pd.DataFrame(rows).pivot(index="gpus", columns="gpu", values="tokens/s/GPU")
    assert table.notna().all().all() and (table["b200"] > table["h100"]).all() and (table["h100"] > table["a100"]).all()
    plans = api.search(model="llama3-8b", gpus=8).plans
    assert {"short", "step_seconds", "mfu", "memory.peak_gib"} <= set(plans.columns)


def test_money(user):
    """Asks: "I have $3M and 60 days." Hoffmann et al. 2022: 20 tokens a parameter, 6 N D FLOPs. By hand with GPT-3 175B in
    fp8: 1,024 H100 at $2.2 for 60 days cost $3.24M; the review's own loop had 55.3 days and $2.99M. In bf16 NVIDIA's recipe
    runs it at 52.6 % of the peak, so the least money is 6 N D / (0.526 x 989 TFLOPS) GPU-seconds, $4.3M: not possible."""
    prices = ("--gpu", "h100=2.2")
    best = user.asks("budget", "--money", "$3,000,000", "--days", "60d", *prices, "--gpu", "b200=4.5")["best"]
    assert best["cost"] <= 3e6 and best["days"] <= 60 and best["tokens"] == pytest.approx(20 * best["size"]["parameters"])
    flops = 6 * best["size"]["parameters"] * best["tokens"]
    hours = best["days"] * 24 * best["num_gpus"]
    assert 0.35 < flops / (hours * 3600) / 989e12 < 0.62, "a share of the peak of H100 that runs reach"
    named = user.asks("budget", "--money", "3M", "--days", "60", "--model", "175b", "--precision", "fp8", *prices)["best"]
    assert named["num_gpus"] == 1024 and named["days"] == pytest.approx(55.3, rel=0.05)
    assert named["cost"] == pytest.approx(2.99e6, rel=0.05)
    impossible = user.asks("budget", "--money", "3e6", "--days", "2 months", "--model", "175b", *prices, exit_code=3)
    by_hand = 6 * 174.6e9 * 20 * 174.6e9 / (0.526 * 989e12) / 3600 * 2.2
    assert impossible["instead"]["least_money"]["cost"] == pytest.approx(by_hand, rel=0.06)
