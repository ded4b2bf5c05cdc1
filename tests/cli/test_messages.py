"""What a person is told who repeats an option, edits an export, names a GPU loosely, asks for a chance near one; passwords."""

import pytest
from autoconfig.specs.errors import InputError, without_password
from autoconfig.specs.units import parse_count

import autoconfig as api
from autoconfig.planning.request_fields import QUESTION, SEARCH, SERVING
from autoconfig.planning.resolve import field_values

TOKENS = next(field for field in QUESTION if field.name == "tokens")
SMALL = ("--model", "gpt3-1.7b", "--num-layers", "4", "--gpus", "8", "--seq-length", "1024", "--global-batch-size", "16")


def words(text):
    return " ".join(text.split())


def test_an_option_given_twice_is_refused_where_one_value_counts(autoconfig):
    twice = ("explain", *SMALL, "--gpu", "h100", "--gpu", "a100", "tp=2")
    run = autoconfig.run(*twice)
    assert run.exit_code == 2 and "--gpu is given twice, h100 and a100" in run.stderr and "search compares" in run.stderr
    assert autoconfig.run("explain", *SMALL, "--gpu", "h100", "--gpu", "h100", "tp=2").exit_code == 0
    run = autoconfig.run("deployments", "--model", "llama3-8b", "--gpus", "1", "--gpus", "2")
    assert run.exit_code == 2 and "--gpus is given twice, 1 and 2" in run.stderr


def test_what_one_gpu_cannot_run_is_left_out_of_a_comparison(autoconfig):
    run = autoconfig.run("search", *SMALL, "--precision", "bf16", "--precision", "fp8", "--gpu", "a100", "--gpu", "h100")
    assert run.exit_code == 0 and "left out: a100-80gb has no fp8" in run.stderr
    assert sum(line.split()[:2] == ["8", "x"] for line in run.stdout.splitlines()) == 3
    run = autoconfig.run("search", *SMALL, "--precision", "mxfp8", "--precision", "fp8", "--gpu", "a100")
    assert run.exit_code == 2 and "a100-80gb has no fp8" in run.stderr


def test_an_export_never_replaces_what_was_edited(autoconfig, tmp_path):
    export = ("export", *SMALL, "--output", str(tmp_path / "run"), "tp=2")
    assert autoconfig.run(*export).exit_code == 0 == autoconfig.run(*export).exit_code
    script = tmp_path / "run" / "train.sh"
    own = script.read_text() + "# mine\n"
    script.write_text(own)
    run = autoconfig.run(*export)
    assert run.exit_code == 2 and "train.sh was edited since autoconfig wrote it" in run.stderr and "--force" in run.stderr
    assert script.read_text() == own
    assert autoconfig.run(*export, "--force").exit_code == 0 and script.read_text() != own
    plan = tmp_path / "run" / "plan.json"
    plan.write_text(plan.read_text().replace('"short": "tp=2', '"short": "tp=4'))
    assert "plan.json was edited" in autoconfig.run(*export).stderr


def test_an_export_takes_the_files_of_the_one_before_with_it(autoconfig, tmp_path):
    folder = tmp_path / "run"
    pretrain = ("export", *SMALL, "--output", str(folder), "tp=2")
    tuned = ("export", *SMALL, "--peft", "lora", "--output", str(folder), "mbs=1,tp=1")
    assert autoconfig.run(*pretrain).exit_code == 0 and (folder / "train.sh").stat().st_mode & 0o111
    assert autoconfig.run(*tuned).exit_code == 0
    left = {path.name for path in folder.iterdir() if path.name[0] != "."}
    assert left == {"plan.json", "overrides.txt", "sft.yaml", "accelerate.yaml"}
    assert not any((folder / name).stat().st_mode & 0o111 for name in left)
    (folder / "overrides.txt").write_text("mine\n")
    run = autoconfig.run(*pretrain)
    assert run.exit_code == 2 and "overrides.txt was edited" in run.stderr and not (folder / "train.sh").exists()
    assert autoconfig.run(*pretrain, "--force").exit_code == 0
    assert (folder / "overrides.txt").read_text() == "mine\n" and (folder / "train.sh").exists()


def test_slurm_options_stand_in_the_batch_script(autoconfig, tmp_path):
    slurm = ("--partition", "gpu", "--account", "me", "--slurm=--qos=low")
    assert autoconfig.run("search", *SMALL, "--export", str(tmp_path / "a"), *slurm).exit_code == 0
    assert autoconfig.run("export", *SMALL, "--output", str(tmp_path / "b"), *slurm, "tp=2").exit_code == 0
    for name in "ab":
        text = (tmp_path / name / "train.sbatch").read_text()
        assert "\n#SBATCH --partition=gpu\n#SBATCH --account=me\n#SBATCH --qos=low\n" in text and "add --partition" not in text
    run = autoconfig.run("search", *SMALL, "--partition", "gpu")
    assert run.exit_code == 2 and "or --export DIR for a batch script" in run.stderr
    run = autoconfig.run("search", *SMALL, "--peft", "lora", "--export", str(tmp_path / "c"), *slurm)
    assert run.exit_code == 2 and "this export has none" in run.stderr and not (tmp_path / "c").exists()


def test_a_number_of_the_command_line_is_not_blamed_on_the_file(autoconfig, tmp_path):
    assert autoconfig.run("export", *SMALL, "--output", str(tmp_path), "tp=2").exit_code == 0
    file = str(tmp_path / "file.yaml")
    assert autoconfig.run("convert", str(tmp_path / "plan.json"), "--format", "primus", "--output", file).exit_code == 0
    run = autoconfig.run("check", file, "--gpus", "12")
    assert run.exit_code == 2 and run.stderr.startswith("error: 12 GPUs in nodes of 8 leave")


@pytest.mark.parametrize("width", ["60", "80"])
def test_a_comparison_says_what_is_compared_and_what_it_leaves_out(autoconfig, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    first = " ".join(autoconfig.run("search", *SMALL, "--gpu", "h100,a100-80gb").stdout.split())
    assert "START" in first and "ratio" in first and "1.00x" in first and "Assumed: " in first
    run = autoconfig.run("search", *SMALL, "--gpu", "h100,a100-80gb", "--verbose")
    said = " ".join(run.stdout.split())
    assert run.exit_code == 0 and "Assumed: " in said and "global batch" in said and "…" not in said
    shown = said.split("Not on this screen: ")[1].split(" (--json")[0].split(", ") if "Not on this" in said else []
    for name in ("step", "tokens/s/GPU", "TFLOPS", "MFU", "peak/limit", "fit"):
        assert (name in shown) != (name in said.split("Not on this screen")[0].split()), name


def test_rules_are_found_by_topic(autoconfig):
    of_sp = autoconfig.run("rules", "sp")
    assert of_sp.exit_code == 0 and "NV046" in of_sp.stdout and "NV001" not in of_sp.stdout
    assert "NV061" in autoconfig.run("rules", "experts").stdout
    assert autoconfig.run("rules", "nonsense").exit_code == 2


def test_options_of_other_programs_are_named_as_they_are_here(autoconfig):
    run = autoconfig.run("search", *SMALL, "--task", "sft")
    assert run.exit_code == 2 and "--peft lora" in run.stderr and "--packed-length" in run.stderr
    run = autoconfig.run("search", *SMALL, "--peft", "qlora")
    assert run.exit_code == 2 and "--peft lora --frozen-dtype nf4" in words(run.stderr) and "'lora'" in run.stderr
    for option in ("--qlora", "--load-in-4bit"):
        assert "--frozen-dtype nf4" in words(autoconfig.run("search", *SMALL, option).stderr)
    with pytest.raises(InputError, match="frozen-dtype nf4"):
        api.search(model="1.7b", gpus=8, peft="qlora")


def test_tokens_whose_billions_were_left_out_are_asked_about(autoconfig):
    for command, given in (("search", "300"), ("scaling", "15000"), ("search", "99999")):
        run = autoconfig.run(command, *SMALL, "--tokens", given)
        assert run.exit_code == 2 and f"say {given}B" in words(run.stderr)
    with pytest.raises(InputError, match="tokens: '300' without a unit is 300 tokens: say 300B"):
        api.search(model="1.7b", gpus=8, tokens=300)
    for given in ("0.3K", "100000", "1e5", 3e11):
        assert field_values([TOKENS], {"tokens": given}) == {"tokens": parse_count(str(given))}
    assert parse_count("300,000,000,000") == 3e11 and TOKENS.value("300,000") == 3e5


@pytest.mark.parametrize("name", ["memory_margin", "fit_chance", "prefix_hit", "acceptance", "kv_memory_ratio"])
def test_a_share_may_be_in_percent(name):
    field = next(one for one in (*QUESTION, *SEARCH, *SERVING) if one.name == name)
    assert field.value("12.5%") == field.value(0.125) == field.value("0.125") == 0.125
    for given, says in (("90", "for percent write 90%"), ("half", "write it like 0.9 or 90%")):
        with pytest.raises(InputError, match=says):
            field.value(given)


def test_a_refused_conversion_names_formats_that_can(autoconfig, tmp_path):
    assert autoconfig.run("export", *SMALL, "--output", str(tmp_path), "tp=2,pp=2").exit_code == 0
    run = autoconfig.run("convert", str(tmp_path / "plan.json"), "--format", "accelerate")
    assert run.exit_code == 2 and "nothing is written; --format megatron, plan" in words(run.stderr)


@pytest.mark.parametrize("width", [80, 100])
def test_a_pipe_is_as_wide_as_columns_says(autoconfig, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    table = [line for line in autoconfig.run("search", *SMALL).stdout.splitlines() if "GiB" in line or "rejected" in line]
    assert table and max(map(len, table)) <= width


def test_a_closed_form_that_the_simulation_contradicts_is_explained(autoconfig, monkeypatch):
    asked = ["--model", "llama3-8b", "--gpus", "1", "--gpu", "h100", "--osl", "200", "--rate", "40", "--verbose"]
    assert "the table's TTFT" not in autoconfig.run("deployments", *asked).stdout
    monkeypatch.setattr("autoconfig.render.serving.APART", 1.0)  # any difference is one to explain
    assert "the table's TTFT" in autoconfig.run("deployments", *asked).stdout


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:geheim@h:5432/x", "postgresql://u:***@h:5432/x"),
        ("postgresql://u:ge@he/im:@h/x", "postgresql://u:***@h/x"),
        ("postgresql://u:geheim", "postgresql://u:***"),
        ("postgresql:u:geheim@h", "postgresql:***@h"),
        ("u:geheim@h", "u:***@h"),
        ("postgresql//u:geheim@h/x", "postgresql//u:***@h/x"),
        ("postgresql:///u:geheim@h/x", "postgresql:///u:***@h/x"),
        ("//u:geheim@h/x", "//u:***@h/x"),
        ("postgresql://me@server:geheim@h:1/x", "postgresql://me@server:***@h:1/x"),
        ("postgresql://u@h:5432/x", "postgresql://u@h:5432/x"),
        ("postgresql://h/x?user=u&password=geheim&sslmode=require", "postgresql://h/x?user=u&password=***&sslmode=require"),
        ("postgresql://u:geheim@h/x?sslpassword=geheim", "postgresql://u:***@h/x?sslpassword=***"),
        ("host=h user=u password=geheim", "host=h user=u password=***"),
        ("postgresql://u@h:abc/x", "postgresql://u@h:abc/x"),
        ("postgresql://[::1]:5432/x", "postgresql://[::1]:5432/x"),
        ("postgresql://h:5432/x", "postgresql://h:5432/x"),
        ("sqlite:////data/a:b@c.db", "sqlite:////data/a:b@c.db"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    assert without_password(url) == shown


@pytest.mark.parametrize(("arguments", "said"), [
    ("search llama3-70b 64", "a question has options: --model llama3-70b --gpus 64"),
    ("deployments llama3-8b", "a question has options: --model llama3-8b"),
    ("search --model llama3-8b --gpus 8 --fix tensor=4", "did you mean tp?"),
    ("search --model llama3-8b --gpus 8 --fix micro-batch-size=4", "did you mean mbs?"),
    ("search --model llama3-8b --gpus 8 --precision fb8", "did you mean fp8?"),
    ("rl --model qwen2.5-7b --gpus 8 --goal fastest", "is not one of 'step', 'gpus'"),
])  # fmt: skip
def test_a_slip_is_answered_with_what_was_likely_meant(autoconfig, arguments, said):
    run = autoconfig.run(*arguments.split())
    assert run.exit_code == 2 and said in run.output, run.output


def test_a_choice_is_read_without_its_dashes(autoconfig):
    asked = ("search", "--model", "llama3-8b", "--gpus", "8", "--top", "1")
    assert autoconfig.json(*asked, "--precision", "fp-8")["numerics"]["precision"] == "fp8"
