"""Start commands of public documentation are read without a wrong flag; changed ones are refused or read right."""

import random
import re
import shlex

import pytest
from autoconfig.specs.errors import InputError
from public_starts import FOLDER, STARTS, mutated

from autoconfig.engines.fields import fill
from autoconfig.engines.flags import FlagWord, find, known_flags, not_modelled, of_another_release, releases_read, roles, split
from autoconfig.engines.reading import file_beside, read_start, starts_server

MODEL = {"vllm": "model", "sglang": "model-path", "tensorrt-llm": "model"}
MUTANTS, SEED = 500, 34


def read(one, text=None, **said):
    path = FOLDER / one["file"]
    text = path.read_text(encoding="utf-8") if text is None else text
    return read_start(text, said.pop("set", one.get("set", {})), beside=file_beside(path), **said)


def test_twenty_an_engine():
    engines = [one["engine"] for one in STARTS.values()]
    assert [engines.count(engine) for engine in MODEL] == [20, 20, 20]
    assert all(one["source"] for one in STARTS.values())
    beside = {"sources.toml", "v11_llama33_hopper.yaml", "t15_extra_llm_api_config.yml"}
    assert {path.name for path in FOLDER.iterdir()} - beside == {one["file"] for one in STARTS.values()}


@pytest.mark.parametrize("name", STARTS)
def test_public_start(name):
    one = STARTS[name]
    assert starts_server((FOLDER / one["file"]).read_text(encoding="utf-8"))
    found = read(one)
    matters = {*roles(found.engine), *not_modelled(found.engine)} - {MODEL[found.engine]}
    assert (found.engine, found.model) == (one["engine"], one["model"])
    assert {key: found.value(key) for key in found.said if key in matters} == one["flags"]
    beside = set(found.said) - matters - {MODEL[found.engine]}
    assert beside == set(one["beside"].split()) - {MODEL[found.engine]}
    assert (found.release, found.gpu, found.gpus) == (one.get("release", ""), one.get("gpu", ""), one.get("gpus"))
    assert list(found.missing) == one.get("missing", [])
    assert [text.split()[0] for text in found.unknown] == one.get("unknown", [])
    assert found.others == ()


def plain_words(text, one):
    """The words of a script that is one command, as a shell has them; None where it is more than that."""
    body = re.sub(r"^\s*#.*$", "", text.replace("\\\n", " "), flags=re.MULTILINE).strip()
    if one["file"].endswith((".yaml", ".dockerfile")) or one.get("set") or re.search(r"[$`;&|<>()'\"\\{}\n]", body):
        return None
    return shlex.split(body)


def test_changed_starts_are_refused_or_read_right():
    """500 seeded slips: never another error than InputError; what is read of a plain command is what its words say."""
    draw, names, compared, refused = random.Random(SEED), list(STARTS), 0, 0
    for _ in range(MUTANTS):
        one = STARTS[draw.choice(names)]
        text = mutated((FOLDER / one["file"]).read_text(encoding="utf-8"), draw)
        try:
            found = read(one, text)
        except InputError as error:
            assert str(error) and len(str(error)) < 2000
            refused += 1
            continue
        words = plain_words(text, one)
        if words is None:
            continue
        compared += 1
        joined = dict(re.findall(r"(--[\w-]+)[ =]([^\s-]\S*)", " ".join(words)))
        known = {row.flag for row in known_flags(found.engine).values()}
        for flag, value in joined.items():
            row = find(found.engine, flag)
            if row is None:
                assert any(flag in text for text in found.unknown), (flag, found.unknown)
            elif row.values == "1" and row.flag in known and not found.said[row.name].unset:
                value = str(float(value)) if row.type == "float" else value
                assert str(found.said[row.name].value) == value
    assert refused > 40 and compared > 60


@pytest.mark.parametrize(
    ("engine", "words", "said"),
    [
        ("vllm", "M -tp 8 -O3 --max-model-len 9k", {"tensor-parallel-size": 8, "optimization-level": 3, "max-model-len": 9000}),
        ("vllm", "M --max-model-len 32K --max_num_seqs=7", {"max-model-len": 32768, "max-num-seqs": 7}),
        ("vllm", "M --max-model-len auto --no-enable-prefix-caching", {"max-model-len": -1, "enable-prefix-caching": False}),
        ("vllm", "M -cc.mode=3 -sc.method mtp", {"compilation-config": {"mode": 3}, "speculative-config": {"method": "mtp"}}),
        ("vllm", "M --tensor-parallel 4", {"tensor-parallel-size": 4}),
        ("sglang", "--model M --tp 4 --chunked-prefill-size -1", {"model-path": "M", "tp-size": 4, "chunked-prefill-size": -1}),
        ("sglang", "--model-path M --speculative-algo NEXTN", {"model-path": "M", "speculative-algorithm": "NEXTN"}),
        (
            "tensorrt-llm",
            "M --tp_size 2 --kv_cache_free_gpu_memory_fraction .8",
            {"tensor_parallel_size": 2, "free_gpu_memory_fraction": 0.8},
        ),
    ],
)
def test_words_of_a_flag(engine, words, said):
    found = split(engine, [FlagWord(text=text) for text in words.split()])
    assert {name: one.value for name, one in found.said.items()} == said
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("engine", "words", "says"),
    [
        ("vllm", "--mem-fraction-static 0.8", "is no flag of vLLM (--mem-fraction-static is a flag of SGLang)"),
        ("vllm", "--gpu-memory-utilisation 0.8", "most like it: --gpu-memory-utilization"),
        ("sglang", "--max-running-request 4x", ""),
        ("tensorrt-llm", "--tp 4", "--tp is no flag of TensorRT-LLM"),
    ],
)
def test_unknown_flags(engine, words, says):
    if not says:
        with pytest.raises(InputError, match="whole number"):
            split(engine, [FlagWord(text=text) for text in words.split()])
        return
    assert says in split(engine, [FlagWord(text=text) for text in words.split()]).unknown[0]


def test_a_flag_of_another_release_is_said():
    flag = known_flags("vllm")["--swap-space"]
    assert releases_read("vllm")[0] == "0.8.5" and flag.last == "0.17.1"
    assert of_another_release(flag, "0.10.0") == ""
    assert of_another_release(flag, "0.17.2") == "", "between two releases that were read it may be there"
    assert of_another_release(flag, "0.20.0") == "--swap-space is a flag of vLLM up to 0.17.1, and this is 0.20.0"
    assert of_another_release(known_flags("vllm")["--language-model-only"], "0.10.0").endswith(
        "after 0.16.0, and this is 0.10.0"
    )


SCRIPT = "vllm serve {} --tensor-parallel-size {}\n"


@pytest.mark.parametrize(
    ("start", "repeated"),
    [
        ("vllm serve x --compilation-config '{}'", "["),
        ("FROM vllm/vllm-openai\nCMD {}", "["),
        ("vllm serve x --compilation-config.a{} 1", ".a"),
        ("vllm serve x --max-model-len {}", "9"),
        ("vllm serve x --max-model-len {}k", "9"),
    ],
)
def test_what_is_too_deep_or_too_long_is_refused(start, repeated):
    with pytest.raises(InputError):
        read_start(start.format(repeated * 30_000) + "\n")


@pytest.mark.parametrize("value", ["1e309", "1e308", "nan", "-1"])
def test_sizes_that_no_machine_has_are_refused(value):
    start = read_start(f"vllm serve meta-llama/Llama-3.1-8B --cpu-offload-gb {value}\n")
    with pytest.raises(InputError, match="--cpu-offload-gb"):
        fill(start, gpu="h100")


def test_several_servers_and_unset_variables_are_named():
    two = SCRIPT.format("a/b", 1) + SCRIPT.format("c/d", 2)
    with pytest.raises(InputError, match=r"starts 2 servers \(1: line 1: vLLM a/b.*; 2: line 2: vLLM c/d"):
        read_start(two)
    assert read_start(two, server=2).model == "c/d"
    with pytest.raises(InputError, match="the file starts 2"):
        read_start(two, server=3)
    found = read_start(SCRIPT.format("a/b", "$N"))
    with pytest.raises(InputError, match=r"\$N is not set in the file; say --set N=VALUE"):
        found.value("tensor-parallel-size")
    assert read_start(SCRIPT.format("a/b", "$N"), {"N": "4"}).value("tensor-parallel-size") == 4
    with pytest.raises(InputError, match="no start of a server"):
        read_start("echo vllm serve a/b\n")


def test_release_by_tag_pin_and_caller():
    assert read_start("pip install vllm==0.11.2\n" + SCRIPT.format("a/b", 1)).release == "0.11.2"
    assert read_start("pip install 'vllm>=0.11.2'\n" + SCRIPT.format("a/b", 1)).release == ""
    docker = "docker run --gpus all vllm/vllm-openai:v0.12.0 --model a/b\n"
    assert read_start(docker).release == "0.12.0" and read_start(docker).model == "a/b"
    assert read_start(docker, release="0.19.1").release == "0.19.1"
    with pytest.raises(InputError, match=r"a release of vLLM is like 0\.19\.1"):
        read_start(docker, release="new")


def test_yaml_of_the_llm_api_goes_before_the_flag():
    text = "cat > x.yml << EOF\nkv_cache_config:\n  free_gpu_memory_fraction: 0.7\nmax_batch_size: 9\nkv_cash: 1\nEOF\n"
    found = read_start(text + "trtllm-serve a/b --max_batch_size 4 --config x.yml\n")
    assert found.value("max_batch_size") == 9
    assert found.value("kv_cache_config.free_gpu_memory_fraction") == 0.7
    assert found.unknown == ("kv_cash in x.yml is no setting of TensorRT-LLM",)
    vllm = "cat > x.yml << EOF\nmax-num-seqs: 9\nasync-scheduling: false\nEOF\nvllm serve a/b --max-num-seqs 4 --config x.yml\n"
    found = read_start(vllm)
    assert found.value("max-num-seqs") == 4, "vLLM: the command line goes before the file"
    assert found.value("async-scheduling") is None and "async-scheduling: false in x.yml says nothing" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("V=0.11.0\npip install vllm==$V\nvllm serve a/b\n", "0.11.0"),
        ('export VLLM_VERSION=0.9.2\nuv pip install "vllm[flashinfer]==${VLLM_VERSION}"\nvllm serve a/b\n', "0.9.2"),
        ("pip install sglang==${SGL:-0.5.6}\npython -m sglang.launch_server --model-path a/b\n", "0.5.6"),
        ("pip install vllm~=0.10.2\nvllm serve a/b\n", "0.10.2"),
        ("pip install vllm~=0.10\nvllm serve a/b\n", ""),  # any 0.x from 0.10 on
        ("pip install vllm==$UNSET\nvllm serve a/b\n", ""),
        ("docker run rocm/vllm:rocm6.4.1_vllm_0.10.0_20250812 vllm serve a/b\n", "0.10.0"),
        ("docker run rocm/vllm:rocm6.3.1_instinct_vllm0.8.3_20250415 vllm serve a/b\n", "0.8.3"),
        ("docker run nvcr.io/nvidia/vllm:25.09-py3 vllm serve a/b\n", ""),
        ("TAG=v0.12.0\ndocker run vllm/vllm-openai:$TAG --model a/b\n", "0.12.0"),
        ("docker run vllm/vllm-openai:v0.12.0@sha256:0123abcd --model a/b\n", "0.12.0"),
        ("docker run vllm/vllm-openai:$UNSET --model a/b\n", ""),
        ('FROM x\nARG VERSION=0.9.2\nRUN pip install vllm==${VERSION}\nCMD ["vllm", "serve", "a/b"]\n', "0.9.2"),
        ('ARG TAG=v0.10.0\nFROM vllm/vllm-openai:${TAG}\nCMD ["--model", "a/b"]\n', "0.10.0"),
        ('ARG TAG=v0.10.0\nFROM vllm/vllm-openai:${TAG}\nENTRYPOINT ["vllm", "serve", "a/b"]\n', "0.10.0"),
        (
            'ARG V=0.5.6\nFROM lmsysorg/sglang:v$V-cu129\nCMD ["python3", "-m", "sglang.launch_server", "--model", "a/b"]\n',
            "0.5.6",
        ),
        ('ARG V=0.9.2\nFROM x\nARG V\nRUN pip install vllm==$V\nCMD ["vllm", "serve", "a/b"]\n', "0.9.2"),
        ('ARG TAG\nFROM vllm/vllm-openai:${TAG}\nCMD ["--model", "a/b"]\n', ""),
        (
            'FROM --platform=linux/amd64 vllm/vllm-openai:v0.10.0 AS base\nRUN true\nFROM base\nCMD ["--model", "a/b"]\n',
            "0.10.0",
        ),
    ],
)
def test_release_behind_a_variable(text, release):
    found = read_start(text)
    assert (found.model, found.release) == ("a/b", release)


def test_a_build_argument_is_said_from_outside():
    text = 'ARG TAG=v0.10.0\nFROM vllm/vllm-openai:${TAG}\nCMD ["--model", "a/b"]\n'
    assert read_start(text, {"TAG": "v0.11.2"}).release == "0.11.2"
    assert read_start(text.replace("=v0.10.0", ""), {"TAG": "v0.11.2"}).release == "0.11.2"


COMPOSE = """services:
  server:
    image: vllm/vllm-openai:${VLLM_TAG:-v0.10.0}
    command: --model ${MODEL:-Qwen/Qwen3-8B} --tensor-parallel-size ${TP:-1}
"""


def test_compose_takes_the_env_file_beside_it(tmp_path):
    """As Docker Compose does: its variables go before the defaults; what is said goes before both."""
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)

    def now(**settings):
        found = read_start(COMPOSE, settings, beside=file_beside(path))
        return found.release, found.model, found.value("tensor-parallel-size"), "beside the file" in " ".join(found.notes)

    assert now() == ("0.10.0", "Qwen/Qwen3-8B", 1, False)
    (tmp_path / ".env").write_text("# pinned\nVLLM_TAG=v0.11.2 # of May\nexport MODEL='meta-llama/Llama-3.1-8B'\nTP=\"2\"\n")
    assert now() == ("0.11.2", "meta-llama/Llama-3.1-8B", 2, True)
    assert now(TP="4") == ("0.11.2", "meta-llama/Llama-3.1-8B", 4, True)
    shell = read_start("vllm serve ${MODEL:-a/b}\n", beside=file_beside(path))
    assert shell.model == "a/b"  # a script reads no .env


UNIT = """[Unit]
Description=a server
[Service]
Environment="TP=2" HF_HOME=/data
ExecStart=-/opt/venv/bin/vllm serve a/b \\
  --tensor-parallel-size ${TP}
Restart=always
"""


@pytest.mark.parametrize(
    ("text", "engine", "release", "ranks"),
    [
        ('docker run --entrypoint bash vllm/vllm-openai:v0.10.0 -c "vllm serve a/b -tp 2"\n', "vllm", "0.10.0", 2),
        (
            "podman run --entrypoint=sh lmsysorg/sglang:v0.5.6 -lc 'python3 -m sglang.launch_server --model a/b --tp 4'\n",
            "sglang",
            "0.5.6",
            4,
        ),
        ("podman run --entrypoint vllm vllm/vllm-openai:v0.11.2 serve a/b -tp 2\n", "vllm", "0.11.2", 2),
        (UNIT, "vllm", "", 2),
        (UNIT.replace("vllm serve a/b", "python -m sglang.launch_server --model a/b"), "sglang", "", 2),
        ("singularity run --nv docker://vllm/vllm-openai:v0.10.0 --model a/b -tp 8\n", "vllm", "0.10.0", 8),
        ("apptainer exec --nv docker://lmsysorg/sglang:v0.5.9 sglang serve --model-path a/b --tp 2\n", "sglang", "0.5.9", 2),
    ],
)
def test_starts_of_containers_and_units(text, engine, release, ranks):
    found = read_start(text)
    tp = found.value("tensor-parallel-size" if engine == "vllm" else "tp-size")
    assert (found.engine, found.model, found.release, tp) == (engine, "a/b", release, ranks)


def test_what_a_command_prints_and_an_argument_of_the_script_are_asked_for():
    with pytest.raises(
        InputError, match=r"wc -l\): what a command prints is not known; write the value there; .*--set NAME=VALUE"
    ):
        read_start("vllm serve a/b --tensor-parallel-size $(nvidia-smi -L | wc -l)\n").value("tensor-parallel-size")
    with pytest.raises(InputError, match=r"\$2 is not set in the file; say --set 2=VALUE"):
        read_start("vllm serve a/b --tensor-parallel-size ${2}\n").value("tensor-parallel-size")
    assert read_start("N=$(nproc)\nvllm serve a/b -tp $N\n", {"N": "4"}).value("tensor-parallel-size") == 4
