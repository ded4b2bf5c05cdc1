"""Which command of a script is the launch and how many processes it starts: other programs, srun and #SBATCH lines; and
`check --gpus N` of one that starts another number, which is read, and written, as one that starts N."""

import os
import re
import subprocess

import pytest
from autoconfig.specs.errors import InputError
from autoconfig.specs.remarks import sentences
from launch_help import launch, read
from tables import tabled

from autoconfig.megatron.argument_list import megatron_program
from autoconfig.megatron.check import check
from autoconfig.megatron.check_input import CheckRequest, read_check
from autoconfig.megatron.edit import improved_text
from autoconfig.megatron.shell.commands import text_of
from autoconfig.megatron.shell.script import read_script

BASE = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --bf16 "
    "--vocab-size 32000 --micro-batch-size 1 --tensor-model-parallel-size 8"
)
TORCHRUN = "torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py"
SCRIPTS = {
    "nodes": ("NNODES=2\nGPUS_PER_NODE=8\nGBS=$((NNODES*GPUS_PER_NODE*8))", TORCHRUN, "$GBS", 1024),
    "processes": ("GPUS=64\nGBS=$((GPUS*4))", "mpirun -np $GPUS python pretrain_gpt.py", "$GBS", 512),
    "default": ('export GPUS="${GPUS:-64}"\nGBS=$((GPUS*4))', "mpirun -np $GPUS python pretrain_gpt.py", "$GBS", 512),
    "number": ("", "mpirun -np 64 python pretrain_gpt.py", "256", 256),
    "option": ("HOST=$(head -n 2 hosts)", "torchrun --nproc_per_node 8 --nnodes=2 pretrain_gpt.py", "256", 256),
    "slurm": ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8", "srun python pretrain_gpt.py", "$((SLURM_NTASKS*4))", 512),
    "both": ("#SBATCH -N 2\n#SBATCH -n 2\nNNODES=2\nGPUS_PER_NODE=8", f"srun {TORCHRUN}", "$((NNODES*64))", 1024),
}


def script(name):
    before, start, batch, _ = SCRIPTS[name]
    return f"{before}\n{start} {BASE} --global-batch-size {batch}\n"


def asked(gpus=128, **settings):
    return CheckRequest(gpu="h100-80gb", gpus=gpus, settings=settings)


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_works_out_from_its_gpus_follows_the_number_that_is_asked_for(name):
    found = read_check(script(name), asked())
    assert found.plan.dp == 16 and found.question.scenario.workload.global_batch_size == SCRIPTS[name][3]
    assert "128 GPUs (--gpus): the script is read with" in found.notes[0]
    own = 16 if name in ("nodes", "option", "slurm", "both") else 64
    assert read_check(script(name), asked(own)).resized == ()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_that_is_written_starts_them(name, tmp_path):
    """Bash itself on the result: what the launcher is told, times the processes of a node where it says nodes."""
    text = improved_text(check(read_check(script(name), asked())), asked())
    found = read_check(text, asked(None))
    assert found.question.scenario.cluster.num_gpus == 128 and found.plan != read_check(script(name), asked()).plan
    assert found.question.scenario.workload.global_batch_size == SCRIPTS[name][3]
    for tool in ("torchrun", "mpirun", "srun"):
        (tmp_path / tool).write_text('#!/bin/bash\necho "$(basename "$0") $*"\n')
        (tmp_path / tool).chmod(0o755)
    (tmp_path / "hosts").write_text("")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_NTASKS": "128"}
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
    wanted = {"processes": "-np 128 ", "default": "-np 128 ", "number": "-np 128 ", "slurm": "--global-batch-size 512"}
    assert wanted.get(name, "nnodes=16" if name == "option" else "--nnodes 16 ") in done.stdout
    assert "#SBATCH" not in text or re.search(r"#SBATCH (--nodes=16|-N 16\n#SBATCH -n 16)\n", text)


def test_where_no_number_of_the_script_says_it_nothing_is_written_and_the_batch_is_named():
    twice = "GPUS=64\nGPUS=32\nmpirun -np $GPUS python pretrain_gpt.py " + BASE + " --global-batch-size $((GPUS*4))\n"
    found = read_check(twice, asked())
    assert found.question.scenario.workload.global_batch_size == 128
    said = "starts 32; what it works out from that, its batch too, is read as it stands"
    assert any(said in one for one in sentences(found.question.assumed))
    with pytest.raises(InputError, match=r"GPUs that the script starts 32 -> 128; --global-batch-size 128 -> 128"):
        improved_text(check(found), asked())
    one_node = "GPUS_PER_NODE=8\ntorchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py " + BASE + " --global-batch-size 64\n"
    assert read_check(one_node, asked()).resized == (), "no node has 128"
    assert read_check(one_node, asked(16)).resized == (("GPUS_PER_NODE", "8", "16"),)


def test_a_batch_that_follows_what_is_changed_is_named():
    text = script("nodes").replace("GBS=$((NNODES*GPUS_PER_NODE*8))", "TP=8\nGBS=$((NNODES*64/TP*8))")
    text = text.replace("--tensor-model-parallel-size 8", "--tensor-model-parallel-size $TP")
    with pytest.raises(InputError, match=r"a step becomes .*--global-batch-size \d+ -> 128"):
        improved_text(check(read_check(text, asked(None))), asked(None))


def test_a_number_of_gpus_is_advised_only_where_the_plan_is_legal_on_it():
    def advice(tp, heads, gpus):
        text = f"torchrun --nproc_per_node {gpus} pretrain_gpt.py {BASE} --global-batch-size 96\n"
        for old, new in (("-size 8 ", f"-size {tp} "), ("heads 32", f"heads {heads}"), ("4096 --num-att", "3072 --num-att")):
            text = text.replace(old, new)
        return next(one.text for one in check(read_check(text, asked(None))).violations if one.rule == "AC005")

    assert advice(3, 24, 8).endswith("say --gpus 24"), "9 are no whole nodes"
    assert "none up to" in advice(3, 32, 8) and "--gpus" not in advice(3, 32, 8), "32 heads are no multiple of 3"
    assert advice(2, 32, 3).endswith("say --gpus 4")


def test_one_process_of_many_asks_for_the_gpus():
    """What mpirun starts: python alone, with sizes that need more than its GPU, or a word on nodes."""
    script = launch(arguments="--tensor-model-parallel-size 2").replace("torchrun --nproc_per_node 8", "python")
    for text in (script, f"N=$((${{NUM_NODES}} * 8))\n{launch()}".replace("torchrun --nproc_per_node 8", "python")):
        with pytest.raises(InputError, match="number of GPUs is not known"):
            read(text)
        assert read(text, gpus=8).question.scenario.cluster.num_gpus == 8


@tabled
def test_more_processes_than_slurm_is_asked_for_gpus_is_a_contradiction(lines, launcher, said):
    text = f"#!/bin/bash\n#SBATCH {lines}\n{launcher} pretrain_gpt.py --num-layers 2 --hidden-size 64 --seq-length 64\n"
    if said:
        with pytest.raises(InputError, match=said):
            read_script(text, megatron_program())
    else:
        assert read_script(text, megatron_program()).num_gpus


@pytest.mark.parametrize(
    ("option", "gpus", "node"),
    [("--include localhost:0,1,2,3", 4, 4), ("-i w-0:0,1", 2, 2), ('--include="w0:4,5,6,7@w1:0,1,2,3"', 8, 4)],
)
def test_deepspeed_starts_a_process_on_each_gpu_that_it_includes(option, gpus, node):
    """malteos/bigscience-Megatron-DeepSpeed-oxw, run.sh: its two GPUs were asked for."""
    found = read_script(f"deepspeed {option} --master_port 1 pretrain_gpt.py {BASE}", megatron_program())
    assert (found.num_gpus, found.gpus_per_node) == (gpus, node)


@pytest.mark.parametrize("equals", ["=", " "])
def test_sbatchs_wrap_is_the_command_of_the_job(equals):
    job = f'sbatch --nodes=2 --ntasks-per-node=8 --wrap{equals}"srun python pretrain_gpt.py {BASE} --global-batch-size $N"\n'
    found = read_script(f"N=64\n{job}", megatron_program())
    assert found.num_gpus == 16 and text_of(found.argv[-1]) == "64"
