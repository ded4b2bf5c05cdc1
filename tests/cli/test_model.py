"""`autoconfig model`, `autoconfig.model` and `GET /v1/models/{name}`: family, parameters, what is left out."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from autoconfig.specs.errors import UnsupportedError

import autoconfig as api

T5_SMALL = {"model_type": "t5", "d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "vocab_size": 32128}


def test_a_config_file(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(T5_SMALL), encoding="utf-8")
    found = json.loads(autoconfig.run("model", str(file), "--json").output)
    assert (found["family"], found["parameters"], found["active_parameters"]) == ("t5", 60_506_624, 60_506_624)
    assert api.model(T5_SMALL).parameters == found["parameters"]


def test_active_parameters_and_what_is_left_out() -> None:
    found = api.model("deepseek-v3")
    assert (found.family, found.parameters, found.active_parameters) == ("deepseek", 671_026_419_200, 37_552_297_472)
    assert found.left_out == ("1 multi-token-prediction depth: 11,610,067,968 parameters",)
    assert api.model("mixtral-8x7b").active_parameters == 12_879_925_248


def test_what_cannot_be_planned_is_refused_with_the_reason(autoconfig: SimpleNamespace) -> None:
    done = autoconfig.run("model", "bart")
    assert done.exit_code == 2 and "encoder-decoder" in done.output
    with pytest.raises(UnsupportedError, match="architectures"):
        api.model(T5_SMALL | {"architectures": ["T5EncoderModel"]})


def test_what_a_file_says_and_the_count_does_not_take_is_left_out(autoconfig: SimpleNamespace, tmp_path: Path) -> None:
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 80, "vocab_size": 1003}
    text = {"model_type": "llama", **sizes, "max_position_embeddings": 64}
    file = tmp_path / "config.json"
    for config, like, left_out in (
        ({**text, "num_nextn_predict_layers": 1}, (), "num_nextn_predict_layers, which LlamaForCausalLM of transformers does"),
        ({**text, "model_type": "mine", "gate": "on"}, ("--like", "llama"), "gate, which llama does not read"),
        ({"model_type": "llava", "text_config": text, "vision_config": {"depth": 2}}, (), "the vision parts of a multi-modal"),
    ):
        file.write_text(json.dumps(config), encoding="utf-8")
        found = json.loads(autoconfig.run("model", str(file), *like, "--json").output)
        assert len(found["left_out"]) == 1 and found["left_out"][0].startswith(left_out)
        assert not any("left out" in note for note in found["assumed"])
        assert f"left out: {left_out}" in " ".join(autoconfig.run("model", str(file), *like).output.split())
        assert list(api.model(config, like="llama" if like else None).left_out) == found["left_out"]
