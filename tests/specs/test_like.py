"""A config.json of an unknown type, read as a known family when asked; ids and addresses of hubs; what is fetched."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.models.config_reader import CLASSES, DEFAULTS, SAME
from autoconfig.specs.models.families.table import FAMILIES
from autoconfig.specs.models.huggingface import OFFERED, likely_family, model_from_mapping, read_like
from autoconfig.specs.models.model_catalogue import load_model, resolve_model
from autoconfig.specs.models.parameters import total_parameters
from autoconfig.specs.remarks import Effect, sentence
from small_models import noted
from tables import tabled

import autoconfig

LLAMA3_8B = {
    "model_type": "my_new_model", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    "rope_theta": 500000.0, "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "architectures": ["MyForCausalLM"], "use_cache": True,
}  # fmt: skip


def test_a_new_type_is_read_as_the_family_that_is_said_and_what_it_leaves_out_is_listed():
    model, remarks = read_like({**LLAMA3_8B, "my_gate": "sigmoid"}, "config.json", "new", "llama")
    notes = list(map(sentence, remarks))
    assert total_parameters(model) == total_parameters(load_model("llama3-8b"))
    assert notes[:2] == ["read as llama, whatever config.json says (--like)", "left out: my_gate, which llama does not read"]
    assert "attention_bias" in notes[2] and "as llama has it" in notes[2]
    model, remarks = read_like({**LLAMA3_8B, "num_attention_heads": 32}, "config.json", "new", "glm4")
    assert model.add_qkv_bias and "attention_bias" in remarks[1].why and "as glm4 has it" in remarks[1].why
    assert not any(note.effect is Effect.LEFT_OUT for note in read_like(LLAMA3_8B, "config.json", "new", "llama")[1])


COUNTS = json.loads((Path(__file__).parent / "family_counts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", sorted(COUNTS))
def test_what_it_does_not_say_is_what_the_familys_class_takes(family):
    """As in a file of the family itself: 256 experts of a deepseek_v3 that does not say them, biases of a glm4."""

    def read(values, like=None):
        try:
            return read_like(values, "x", "x", like)[0] if like else model_from_mapping(values, "x", "x")
        except InputError:
            return None

    for key in DEFAULTS["defaults"].get(family, {}):
        left_out = {key} | {other for other, one in SAME.get(family, {}).items() if one == key}
        values = {name: value for name, value in COUNTS[family][0].items() if name not in left_out}
        assert read({**values, "model_type": "my_new_model"}, family) == read({**values, "model_type": family}), key


def test_it_is_offered_where_the_keys_are_those_of_a_family():
    with pytest.raises(UnsupportedError, match=r"'my_new_model'.*its keys are those of llama: say --like llama to read it so;"):
        model_from_mapping(LLAMA3_8B, "config.json", "new")
    with pytest.raises(UnsupportedError, match=r"\(left out then: my_gate\)"):
        model_from_mapping({**LLAMA3_8B, "my_gate": "sigmoid"}, "config.json", "new")
    odd = {**LLAMA3_8B, **{f"my_{name}": 1 for name in range(9)}}
    with pytest.raises(UnsupportedError) as refused:
        model_from_mapping(odd, "config.json", "new")
    assert "--like" not in str(refused.value)
    experts = {**LLAMA3_8B, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024, "norm_topk_prob": True}
    assert likely_family(experts)[0] == "qwen3_moe" and set(OFFERED) <= set(FAMILIES)


@pytest.mark.parametrize(("kind", "says"), [("lama", "did you mean llama"), ("gpt2", "is missing")])
def test_a_family_that_does_not_exist_or_does_not_fit(kind, says):
    with pytest.raises(InputError, match=says):
        read_like(LLAMA3_8B, "config.json", "new", kind)


def test_what_is_known_and_refused_stays_refused():
    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        read_like({**LLAMA3_8B, "model_type": "bart"}, "config.json", "new", "llama")
    with pytest.raises(InputError, match=r"is for a config.json, and llama3-8b is in the catalogue"):
        resolve_model("llama3-8b", like="llama")


@pytest.mark.parametrize("kind", ["apertus", "nanochat", "longcat_flash", "olmo", "mistral4", "qwen3", "mistral"])
def test_a_type_of_transformers_is_not_read_as_one_of_another_class(kind):
    """Apertus's MLP has no gate, NanoChat's neither, and half of LongCat's attention would be missing: 15 % to hundredfold."""
    with pytest.raises(UnsupportedError, match=rf"'{kind}' is built by .* of transformers, which is not as llama is"):
        read_like({**LLAMA3_8B, "model_type": kind, "architectures": []}, "config.json", "new", "llama")
    if kind not in FAMILIES:
        with pytest.raises(UnsupportedError) as refused:
            model_from_mapping({**LLAMA3_8B, "model_type": kind}, "config.json", "new")
        assert "--like" not in str(refused.value)


def test_the_types_that_transformers_knows_are_those_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    refused = dict(re.findall(r"^\| `([^`]+)` \| (\S+) \|", page, re.MULTILINE))
    assert len(refused) > 100 and {name: CLASSES[name] for name in refused} == refused
    assert {name for name, its in CLASSES.items() if its} - set(FAMILIES) == set(refused)


def test_a_type_with_the_class_of_another_is_offered_that_one():
    with pytest.raises(UnsupportedError, match="has the class of gpt2: say --like gpt2"):
        model_from_mapping({**LLAMA3_8B, "model_type": "gpt-sw3"}, "config.json", "new")
    small = {"model_type": "gpt-sw3", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 32}
    alike = total_parameters(model_from_mapping({**small, "model_type": "gpt2"}, "x", "x"))
    assert total_parameters(read_like(small, "x", "x", "gpt2")[0]) == alike


LLAMA = {**LLAMA3_8B, "model_type": "llama"}


@tabled
def test_a_class_that_is_not_the_types_is_said(more):
    file = {**LLAMA, **more}
    assert "is LlamaForCausalLM: it is counted and priced as LlamaForCausalLM" in noted(file)[0]
    assert autoconfig.model(file).left_out[0].startswith("what ")
    assert read_like(file, "x", "x", "qwen3")[1][0].value == "qwen3", "who knows better says so"


def test_code_of_the_files_own_for_the_types_class_is_said():
    own = {"auto_map": {"AutoConfig": "a.LlamaConfig", "AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"}}
    assert noted({**LLAMA, **own, "architectures": ["LlamaForCausalLM"]}) == [
        "left out: the file's own code for LlamaForCausalLM (auto_map), which is not read"
    ]


@tabled
def test_the_names_of_a_types_own_classes_are_not_said(kind, name):
    assert not any("names" in note for note in noted({"model_type": kind, "architectures": [name]}))


def test_every_edge_takes_it(autoconfig, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA3_8B))
    asked = ("--model", str(file), "--gpus", "8", "--json")
    assert autoconfig.run("search", *asked).exit_code == 2
    found = json.loads(autoconfig.run("search", *asked, "--like", "llama", "--top", "1").stdout)
    assert any("read as llama" in text for text in found["assumed"]) and found["plans"]
    served = json.loads(autoconfig.run("deployments", *asked, "--like", "llama", "--simulate", "0", "--top", "1").stdout)
    assert any("read as llama" in text for text in served["question"]["assumed"])
    assert autoconfig.run("model", str(file), "--like", "llama").stdout.startswith(f"{tmp_path.name} (llama): 8,030,261,248")


@pytest.mark.parametrize("before", ["", "https://hub.invalid/", "https://hub.invalid/models/", " http://hub.invalid/"])
@pytest.mark.parametrize("behind", ["", "/", "/tree/main?x=1"])
def test_ids_and_addresses_of_hubs(before, behind):
    if before or not behind:
        assert resolve_model(f"{before}Qwen/Qwen3-8B{behind}")[0].name == "qwen3-8b"


def test_nothing_is_fetched_unless_asked():
    with pytest.raises(InputError, match=r"some-org/New-7B is not in the catalogue: give its config.json, or say --download"):
        resolve_model("https://hub.invalid/some-org/New-7B")
    with pytest.raises(InputError, match=r"give its config\.json as the model, a JSON object"):
        resolve_model("some-org/New-7B", paths=False)


FETCH = """
import sys
from autoconfig.specs.errors import InputError
from autoconfig.specs.models.model_catalogue import resolve_model
if sys.argv[1] == "missing":
    sys.modules["huggingface_hub"] = None
try:
    model, notes = resolve_model("some-org/New-7B", download=True, like="llama")
    print(model.name, model.num_layers, notes[0].why)
except InputError as error:
    print(type(error).__name__, error)
"""


def fetched(home, case="there"):
    """In a process of its own without a network: the hub's client reads its cache alone."""
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", FETCH, case], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.service
def test_a_config_is_fetched_through_the_hubs_client(tmp_path):
    pytest.importorskip("huggingface_hub")
    assert fetched(tmp_path).startswith("FileError --download: config.json of some-org/New-7B cannot be fetched (")
    folder = tmp_path / "hub" / "models--some-org--New-7B"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(LLAMA3_8B))
    assert fetched(tmp_path).startswith("New-7B 32 the config.json of some-org/New-7B, as downloaded")


def test_what_is_left_out_is_said_on_the_first_screen(autoconfig, tmp_path):
    """It changes the count of parameters, so it is no remark of the long list."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**LLAMA3_8B, "my_gate": "sigmoid"}))
    run = autoconfig.run("search", "--model", str(file), "--like", "llama", "--gpus", "8")
    assert "left out: my_gate, which llama does not read" in " ".join(run.stdout.split())
