"""Launch scripts are read, never run: 27 public ones (facts re-typed with their source), the shell's own rules, bad input."""

import contextlib
import subprocess
import time
from itertools import product
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.remarks import sentences
from launch_help import launch, read
from tables import table, tabled

from autoconfig.megatron.argument_list import megatron_program
from autoconfig.megatron.check import plan_violations
from autoconfig.megatron.read import as_megatron_takes_it
from autoconfig.megatron.shell.commands import Source, reason_of, text_of
from autoconfig.megatron.shell.interpreter import Reader
from autoconfig.megatron.shell.script import read_script
from autoconfig.megatron.shell.syntax import parse

SCRIPTS = Path(__file__).parent / "scripts"
READ = table(__file__, "public_scripts")
REFUSED = [
    ("rocm_2024_llama2_7b", {}, InputError, "commands are never run"),
    ("pai_2024_llama2_70b", {}, InputError, "--set 1=VALUE"),
    ("pai_2024_llama2_70b", {"gpus": 8}, InputError, "--set 2=VALUE"),
    ("epfllm_2023_finetune", {}, InputError, "name the model with --model"),
    ("megatron_2025_mamba", {}, UnsupportedError, "layers are given by ratios"),
    ("sc21_2021_figure_11", {}, InputError, "no launch of Megatron-LM was found"),
]


@pytest.mark.parametrize(("name", "given", "gpus", "plan", "billions", "software"), READ, ids=[row[0] for row in READ])
def test_public_scripts_are_read(name, given, gpus, plan, billions, software):
    found = read((SCRIPTS / f"{name}.sh").read_text(), **given)
    scenario = found.question.scenario
    assert str(found.plan) == plan
    assert scenario.cluster.num_gpus == gpus and scenario.software.name == software
    assert total_parameters(scenario.model) / 1e9 == pytest.approx(billions, abs=0.06)
    held_to = as_megatron_takes_it(found.plan) if found.megatron_fsdp else found.plan
    assert plan_violations(scenario, held_to, found.split) == [], "each of them ran"


@pytest.mark.parametrize(("name", "given", "kind", "says"), REFUSED)
def test_what_cannot_be_read_is_refused_with_what_to_do(name, given, kind, says):
    with pytest.raises(kind) as error:
        read((SCRIPTS / f"{name}.sh").read_text(), **given)
    assert says in str(error.value)


def test_every_script_names_its_source_and_is_a_shell_script():
    files = sorted(SCRIPTS.glob("*.sh"))
    assert {file.stem for file in files} == {row[0] for row in READ} | {row[0] for row in REFUSED}
    for file in files:
        assert file.read_text().splitlines()[1].startswith("# Facts of ")
        assert subprocess.run(["bash", "-n", str(file)], capture_output=True, check=False).returncode == 0


def test_a_script_that_submits_itself_is_read_as_inside_of_its_job():
    again = 'if [ -z $SLURM_JOB_ID ]; then\n  sbatch "$0"\n  exit\nfi\n'
    assert read("#SBATCH --nodes=2\n" + again + launch("", "--tensor-model-parallel-size 4")).plan.tp == 4
    assert read(again + launch("", "--tensor-model-parallel-size 4")).plan.tp == 4, "the other branch starts nothing"
    with pytest.raises(InputError, match="ends with the exit"):
        read(again.replace("SLURM_JOB_ID", "INSIDE") + launch("", "--tensor-model-parallel-size 4"))


@tabled
def test_the_shell_is_followed(before, arguments, tp):
    assert read(launch(before, arguments)).plan.tp == tp


@pytest.mark.parametrize(
    ("before", "arguments", "tp"), [row for row in table(__file__, "test_the_shell_is_followed")[1:] if "<path" not in row[0]]
)
def test_bash_says_the_same(tmp_path, before, arguments, tp):
    """The rows above, in bash itself."""
    text = f"{before}\nprintf '%s\\n' {arguments}\n"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, cwd=tmp_path, timeout=20, check=False)
    words = (done.stdout or (tmp_path / "log").read_text()).replace("=", "\n").split("\n")
    assert words[words.index("--tensor-model-parallel-size") + 1] == str(tp), done.stderr


@tabled
def test_what_is_not_followed_is_refused(before, says):
    with pytest.raises(InputError, match=says):
        read(launch(before, "--tensor-model-parallel-size $TP"))


@tabled
def test_set_e_ends_a_script_as_in_bash(before, line):
    done = subprocess.run(["bash", "-c", f"{before}\necho goes on"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode and not done.stdout
    with pytest.raises(InputError, match=f"ends with the exit of line {line}"):
        read(launch(before, "--tensor-model-parallel-size 2"))


def test_a_launch_over_ssh_is_read_with_variables_of_its_own():
    plain = launch("TP=2", "--tensor-model-parallel-size $TP")
    head, _, command = plain.rpartition("torchrun")
    over = f'{head}for H in a b; do ssh -p 22 $H "cd /x && torchrun{command.rstrip()}" &\ndone\nwait\n'
    found = read(over)
    assert found.plan.tp == 2 and "on another machine" in " ".join(found.notes)
    with pytest.raises(InputError, match="TP in line"):
        read(over.replace("$TP", "\\$TP"))


def test_variables_of_unknown_names_are_said():
    found = read(launch('while read -r LINE; do export "$LINE"; done < x.env', "--tensor-model-parallel-size 2"))
    assert "line 1, which runs text that is not known (export $LINE), may set any variable" in " ".join(found.notes)


def test_words_are_bashs():
    """Expansions beside each other, in and out of quotes: the grammar has its troubles with `$A/$B-c` and `$10`."""
    names = ("1", "b", "_x", "{b}", "?", "2b", "(echo h)", "((3/2))")
    befores, behinds = ("", "x/", "$b/", "${b}-", '"$b".'), ("", "-", "/y", "-i0.1", '"q"', "$b")
    words = [f"{before}${name}{behind}" for before, name, behind in product(befores, names, behinds)]
    head = "set -- P1 P2\nb=B\n_x=X\nb_=Y\n"
    lines = head + "\n".join(f"A{at}={word}\nB{at}=({word} z)" for at, word in enumerate(words))
    shown = "\n".join(f'printf "%s|%s\\n" "$A{at}" "${{B{at}[0]}}"' for at in range(len(words)))
    ran = subprocess.run(["bash", "-c", f"{lines}\n{shown}"], capture_output=True, text=True, timeout=100, check=True)
    reader = Reader(lines, megatron_program(), {})
    reader.run_script(parse(Source(text=lines, origin=range(len(lines)), file_text=lines)))
    values = reader.variables.values
    known = [at for at in range(len(words)) if not reason_of(values[f"A{at}"])]
    ours = {words[at]: f"{text_of(values[f'A{at}'])}|{text_of(values[f'B{at}'][0])}" for at in known}
    bashs = ran.stdout.splitlines()
    assert ours == {words[at]: bashs[at] for at in known}
    assert len(known) > len(words) * 0.8


UNDECIDED = [
    ("if [ -d $HOME/x ]; then A='--tensor-model-parallel-size 2'; fi", "$A", "line 1"),
    ("A='--no-load-optim'\n[ -d /x ] && A=\"$A --pipeline-model-parallel-size 2\"", "$A", "line 2"),
    ("if [ -f /x ]; then A=(--swiglu); else A=(--squared-relu); fi", '"${A[@]}"', "--swiglu"),
    ("", "$(cat arguments.txt)", "commands are never run"),
    ("", "$1", "--set 1=VALUE"),
    ('for f in $(ls); do A="$A --x"; done', "$A", "--set A=VALUE"),
    ('while read line; do A="$A $line"; done < f', "$A", "--set A=VALUE"),
    ("read TP", "--tensor-model-parallel-size $((TP * 2))", "while the script runs"),
    ("X=$(nproc)\n(( TP = X * 2 ))", "--tensor-model-parallel-size $TP", "never run"),
    ("X=$(nproc)\nfor A in 1 2; do TP=$A; [ $X = 3 ] && break; done", "--tensor-model-parallel-size $TP", "--set TP=VALUE"),
]


@pytest.mark.parametrize(("before", "arguments", "says"), UNDECIDED)
def test_no_verdict_where_the_plan_is_not_fully_read(before, arguments, says):
    with pytest.raises(InputError) as error:
        read(launch(before, arguments))
    assert says in str(error.value)


ALONE = launch().replace("torchrun --nproc_per_node 8", "python")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (ALONE, 1),
        (ALONE.replace("python", "nohup python3 -u"), 1),
        (ALONE.replace("python", "mpirun -np 16 python"), 16),
        (f"#SBATCH --nodes=4 --ntasks=16\n{ALONE.replace('python', 'srun -N 2 -n 8 python')}", 8),
        (f"#SBATCH --nodes=2 --ntasks-per-node=4\n{ALONE.replace('python', 'srun python')}", 8),
        (f"#SBATCH --nodes=2\n\n# --\n#SBATCH -n 8\nset -e\n#SBATCH -n 32\n{ALONE.replace('python', 'srun python')}", 8),
        (f"set -e\n#SBATCH --nodes=2 --gpus-per-node=8\n{ALONE}", 1),  # sbatch stops reading at the first command
        (ALONE.replace("python", "mpirun python"), "line 2 does not say"),
        (ALONE.replace("python", "jsrun -n 4 -g 6 python"), "line 2 does not say"),
        (f"#SBATCH --nodes=2 --gpus-per-node=8\n{ALONE}", "#SBATCH says that it is one of many"),
        (f"#PBS -l select=4\n{ALONE}", "#PBS says that it is one of many"),
        (f"export RANK=$OMPI_COMM_WORLD_RANK\n{ALONE}", "$OMPI_ says that it is one of many"),
    ],
)
def test_python_alone_is_one_gpu_only_where_nothing_starts_it_many_times(text, gpus):
    if isinstance(gpus, int):
        assert read(text).question.scenario.cluster.num_gpus == gpus
        return
    with pytest.raises(InputError, match="--gpus N") as error:
        read(text)
    assert gpus in str(error.value)


def test_a_refusal_says_where_reading_stopped():
    with pytest.raises(InputError, match="ends with the exit of line 2"):
        read(f"if [ a = a ]; then\n exit 1; fi\n{launch()}")


def test_a_launch_in_a_loop_names_no_other_lines():
    found = read(f"while true; do {launch()} --tensor-model-parallel-size 2\ndone")
    assert any(text.endswith("the first of several launches is read") for text in found.notes)


def test_what_branches_have_in_common_is_kept():
    found = read(launch("A='--tensor-model-parallel-size 2'\n[ -d /x ] && A+=' --log-throughput' || A+=' --new-one 3'", "$A"))
    assert found.plan.tp == 2 and "--log-throughput" in found.ignored
    assert any(text.startswith("--new-one 3: $A depends on a condition in line 2") for text in sentences(found.unknown))


def test_eval_and_bash_c_and_crlf_are_followed():
    text = launch("", "--tensor-model-parallel-size 2").strip()
    assert read(f"CMD='{text}'\neval $CMD").plan.tp == 2
    assert read(f"CMD='{text}'\nsrun -l bash -c \"$CMD\"").plan.tp == 2
    assert read(launch("TP=2", "\\\n --tensor-model-parallel-size $TP").replace("\n", "\r\n")).plan.tp == 2


@pytest.mark.parametrize("value", ["$(touch {0})", "`touch {0}`", "$(rm -rf {0})", "<(touch {0})", "$(($(touch {0})+1))"])
def test_nothing_is_ever_run(tmp_path, value):
    mark = tmp_path / "mark"
    dangerous = value.format(mark)
    for text in (
        launch(f"X={dangerous}"),
        launch(dangerous),
        launch("", f"--data-path {dangerous}"),
        launch(f'eval "{dangerous}"'),
        launch(f"if {dangerous}; then A=1; fi"),
        launch(f"A=( {dangerous} )\nB[$(touch {mark})]=1\ntouch {mark}"),
    ):
        with contextlib.suppress(InputError):
            read(text)
        assert not mark.exists()
    with pytest.raises(InputError, match=r"never run|not known|worked out|not a whole number"):
        read(launch(f"N={dangerous}", "--tensor-model-parallel-size ${N}x"))


def test_an_unknown_value_is_an_error_only_where_it_is_needed():
    assert read(launch("P=$(hostname)", "--data-path $P --save $UNSET/x")).plan.tp == 1
    with pytest.raises(InputError, match="--micro-batch-size is not known"):
        read("M=$(nproc)\n" + launch().replace("--micro-batch-size 1", "--micro-batch-size $M"))
    assert (
        read("M=$(nproc)\n" + launch().replace("--micro-batch-size 1", "--micro-batch-size $M"), settings={"M": "2"}).plan.mbs
        == 2
    )


@tabled
def test_cut_or_foreign_text_is_an_input_error(text):
    with pytest.raises(InputError) as error:
        read_script(text, megatron_program())
    assert len(str(error.value)) > 30


def test_what_bash_cannot_be_is_named_by_its_line():
    for text, line in (("A=1\nB=2\nif [ a\n", 3), ("A=1\necho $((1+\n", 2), ("A=1\r\nB=(\r\n", 2), ("a\n! { b; }\n", 2)):
        with pytest.raises(InputError, match=rf"^line {line}: .*(cannot be read as bash|is missing); close what is open"):
            read_script(text, megatron_program())


def test_every_prefix_of_a_script_is_read_or_refused():
    for name in ("bigscience_2022_bloom_176b", "megatron_2025_llama3_8b_fp8", "pai_2024_llama2_70b"):
        text = (SCRIPTS / f"{name}.sh").read_text()
        for end in range(0, len(text), 23):
            try:
                read(text[:end], gpus=8)
            except InputError as error:
                assert len(str(error)) < 1500


def test_exploding_scripts_end_soon():
    start = time.process_time()
    doubling = "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 60
    for text in (
        doubling,
        "f() { f; f; }\nf\n",
        "A=$((9**9**9**9))\n" + launch(),
        "(" * 2000,
        "if true; then " * 2000,
        '"${A:-' * 500,
        "eval 'eval \"$X\"'\n",
        "X='eval $X'\neval $X\n",
        *(text * (30_000 // len(text)) for text in ("A=(", "$[", "<<", "a | ", "a && ", "'a\"", "[[ ( ", "{a,", "`<<<a ")),
        "case a in " + "@(" * 10_000,
        "cat " + "<<E " * 5_000 + "\n",
    ):
        with contextlib.suppress(InputError):
            read_script(text, megatron_program())
    assert time.process_time() - start < 20


@tabled
def test_generation_evaluation_and_multimodal_programs_are_refused(program, argument, says):
    with pytest.raises(UnsupportedError, match=says):
        read(launch(arguments=argument).replace("pretrain_gpt.py", program))


@tabled
def test_a_tokenizer_that_is_known_is_no_guess(given, size):
    found = read(launch("", given).replace("--vocab-size 1000", ""))
    assert any(f"vocabulary {size}" in text for text in sentences(found.question.assumed))


UNSAID = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/ours"


def test_a_vocabulary_that_may_be_any_is_asked_for():
    """Neither a variable nor a comment says it."""
    script = launch("", UNSAID).replace("--vocab-size 1000", "")
    own = "--tokenizer-type Llama2Tokenizer --tokenizer-model src/ours/v4_alpha_1.0.model"
    named = "--tokenizer-type GPT2BPETokenizer --vocab-file /flash/europa-tokenizer/vocab.json --merge-file /x"
    for given in (UNSAID, "--tokenizer-name-or-path gpt20b/x", own, named):
        with pytest.raises(InputError, match=r"is not known: --tokenizer.* known by this exact name; pass --set vocab_size=N"):
            read(launch("", given).replace("--vocab-size 1000", ""))
    for line in ("NAME=Llama-2-7B", "VOCAB_SIZE=32000", "# as Llama-2-7B"):
        with pytest.raises(InputError, match="vocabulary is not known"):
            read(f"{line}\n{script}")
    assert read(script, settings={"vocab_size": "64000"}).question.scenario.model.vocab_size == 64000


def test_a_variable_that_a_command_fills_is_asked_for_by_its_name():
    script = launch("TP=$(yq .tp model.yaml)\n", "--tensor-model-parallel-size $TP")
    with pytest.raises(InputError, match=r"yq .* commands are never run: say --set TP=VALUE"):
        read(script)
    assert read(script, settings={"TP": "2"}).plan.tp == 2


def test_a_script_without_a_launch_names_the_file_that_may_hold_it():
    with pytest.raises(InputError, match=r"no launch .*; line 2: \./CONFIG\.sh is a file of its own and is not read; give"):
        read("TP=8\n. ./CONFIG.sh\nexit 0\n")
