"""Every model file loads, says where its numbers come from, and sums to its published parameter count."""

import json
import math
import statistics
import time
from pathlib import Path

import pytest
from autoconfig.specs.errors import AutoconfigError, InputError, UnknownNameError, UnsupportedError
from autoconfig.specs.files import replace_section
from autoconfig.specs.models import model_catalogue
from autoconfig.specs.models.model_catalogue import (
    FOLDER,
    INDEX,
    MAX_PARAMETERS,
    MIN_PARAMETERS,
    build_index,
    gpt3_style,
    load_model,
    model_aliases,
    model_names,
    resolve_model,
)
from autoconfig.specs.models.parameters import total_parameters
from hypothesis import given, settings
from hypothesis import strategies as st

FILES = sorted(path.stem for path in FOLDER.glob("*.json") if path != INDEX)


EXACT = {
    "llama-7b": 6_738_415_616,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen3-0.6b": 596_049_920,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "bloom-176b": 176_247_271_424,
    "falcon-180b": 179_522_565_120,
    "gpt-neox-20b": 20_554_567_680,
    "tinyllama-1.1b": 1_100_048_384,
    "gemma-7b": 8_537_680_896,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gpt-j-6b": 6_050_882_784 - 28 * (16_384 + 4_096) - 50_400,  # the biases that its spec leaves out
    "kimi-k2": 1_026_408_232_448,
    "mistral-large-123b": 122_610_069_504,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "phi3-mini": 3_821_079_552,
    "phi4-14b": 14_659_507_200,
    "qwen3-coder-480b-a35b": 480_154_875_392,
}


"""Published to the unit: safetensors totals, model cards, papers; written here a second time on purpose."""


ROUNDED_BILLIONS = {  # Narayanan et al. 2021, Table 1, and the Megatron-LM README
    "gpt3-3.6b": 3.6,
    "gpt3-7.5b": 7.5,
    "gpt3-18b": 18.4,
    "gpt3-39b": 39.1,
    "gpt3-76b": 76.1,
    "gpt3-145b": 145.6,
    "gpt3-291b": 290.8,
    "gpt3-310b": 310.1,
    "gpt3-530b": 529.6,
    "gpt3-1t": 1008.0,
}


SPELLINGS = {
    "LLAMA3_70B": "llama3-70b", "LLAMA3-405B": "llama3.1-405b", "LLAMA3.1-405B": "llama3.1-405b",
    "LLAMA3.1_405B": "llama3.1-405b", "Llama-3-405B": "llama3.1-405b", "LLAMA2_7B": "llama2-7b", "Llama-2-70B": "llama2-70b",
    "Llama-3.3-70B": "llama3.1-70b", "llama31_405b": "llama3.1-405b", "LLaMA-65B": "llama-65b",
    "Qwen3_235B_a22B (tokendrop)": "qwen3-235b-a22b", "Qwen3_30B_a3B": "qwen3-30b-a3b", "qwen25_500m": "qwen2.5-0.5b",
    "qwen3_1p7b": "qwen3-1.7b", "GPT3-175B": "gpt3-175b", "GPT-3 175B": "gpt3-175b", "GPT-3 5B": "gpt3-5b",
    "GPT-175B": "gpt3-175b", "GPT-1T": "gpt3-1t", "GPT-1.7B": "gpt3-1.7b", "Mixtral-8x7B": "mixtral-8x7b",
    "mixtral_8x22b": "mixtral-8x22b", "GPT OSS 120B": "gpt-oss-120b", "gpt_oss_20b": "gpt-oss-20b",
    "DeepSeekV3 (tokendrop)": "deepseek-v3", "DeepSeekV3 (dropless)": "deepseek-v3", "DeepSeek-R1-0528": "deepseek-v3",
    "Nemotron-340B": "nemotron4-340b", "nemotron4_15b": "nemotron4-15b", "MT-NLG-530B": "gpt3-530b",
    "GPT-NeoX-20B": "gpt-neox-20b", "175b": "gpt3-175b", "530B": "gpt3-530b", "1t": "gpt3-1t", "22b": "gpt3-22b",
    "  175B ": "gpt3-175b", "qwen3-235b": "qwen3-235b-a22b", "mistral": "mistral-7b", "llama2-70b-99.9": "llama2-70b",
    "GPT-J-6B": "gpt-j-6b", "Falcon-180B": "falcon-180b", "Kimi-K2-Instruct": "kimi-k2", "tinyl": "tinyllama-1.1b",
    "meta-llama/Llama-2-7b-hf": "llama2-7b",
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_every_file_loads_with_sources_and_its_published_count(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert model.sources["*"]
    assert total_parameters(model) == model.published_parameters
    assert model.default_seq_length is not None and model.default_seq_length <= model.max_position_embeddings
    assert (
        model.default_global_batch_size is None or "default_global_batch_size" in model.sources or model.name.startswith("gpt3")
    )


@pytest.mark.parametrize(("name", "parameters"), EXACT.items())
def test_counts_published_to_the_unit(name: str, parameters: int) -> None:
    assert total_parameters(load_model(name)) == parameters


@pytest.mark.parametrize(("name", "billions"), ROUNDED_BILLIONS.items())
def test_megatron_table_sizes_round_to_the_published_ones(name: str, billions: float) -> None:
    assert round(total_parameters(load_model(name)) / 1e9, 1) == billions


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("gpt3-")])
def test_gpt3_family_follows_narayanan_equation_2(name: str) -> None:
    m = load_model(name)
    layers, h, s = m.num_layers, m.hidden_size, m.max_position_embeddings
    formula = 12 * layers * h**2 + 13 * layers * h + (m.vocab_size + s) * h
    assert total_parameters(m) == formula + 2 * h


def test_175b_is_that_of_the_megatron_papers() -> None:
    m = load_model("175b")
    assert (m.num_layers, m.hidden_size, m.num_attention_heads, m.vocab_size) == (96, 12288, 96, 51200)
    assert (m.default_seq_length, m.default_global_batch_size) == (2048, 1536)


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS.items())
def test_spellings_of_published_tables(spelling: str, name: str) -> None:
    assert load_model(spelling).name == name


def test_without_mtp_is_another_model() -> None:
    assert load_model("DeepSeekV3 (w/ MTP)").mtp_num_layers == 1
    without = load_model("DeepSeekV3 (w/o MTP)")
    assert without.mtp_num_layers == 0 and without.name == "deepseek-v3*"


@pytest.mark.parametrize(
    "text", ["banana", "", "llama", "llama3-7", "gpt3-1", "Mixtral-8x22B-G8T8", "llama3_70b-12layers", "175b (x)", "(", "\0"]
)
def test_unknown_names(text: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown model"):
        load_model(text)


def test_a_typo_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("mixtrall-8x7b")
    assert "mixtral-8x7b" in caught.value.nearest


def test_the_index_is_the_files() -> None:
    assert json.loads(INDEX.read_text(encoding="utf-8")) == build_index(), "run specs.model_catalogue.write_index()"
    assert model_names() == FILES
    assert all(alias == alias.lower() and " " not in alias and "_" not in alias for alias in model_aliases())


def test_loading_one_model_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = Path.read_text

    def counting(self: Path, *args: object, **kwargs: object) -> str:
        read.append(self.name)
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", counting)
    model_catalogue._load.cache_clear()
    model_catalogue._index.cache_clear()
    load_model("175b")
    assert read == ["index.json", "gpt3-175b.json"]


def test_loading_one_model_is_fast() -> None:
    times = []
    for _ in range(9):
        model_catalogue._load.cache_clear()
        model_catalogue._index.cache_clear()
        start = time.perf_counter()
        load_model("175b")
        times.append(time.perf_counter() - start)
    assert statistics.median(times) < 0.003


def test_resolve_a_catalogue_name_assumes_nothing() -> None:
    assert resolve_model("Llama-3-70B")[1] == []


def test_resolve_a_bare_size_says_what_was_assumed() -> None:
    model, assumed = resolve_model("13b")
    assert model.name == "gpt3-style-13b"
    assert assumed == ["model 13b is not in the catalogue: GPT-3-style architecture with 40 layers, hidden 5120, 40 heads"]


@pytest.mark.parametrize(("text", "name"), [
    ("0.175t", "gpt3-175b"), ("1000B", "gpt3-1t"), ("gpt3-13b", "gpt3-style-13b"), ("GPT-2.7B", "gpt3-style-2.7b"),
    ("70b", "gpt3-style-70b"),
])  # fmt: skip
def test_resolve_other_ways_to_write_a_size(text: str, name: str) -> None:
    assert resolve_model(text)[0].name == name


def test_resolve_a_folder_with_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
                "num_hidden_layers": 32, "num_attention_heads": 32,
            }
        ),
        encoding="utf-8",
    )  # fmt: skip
    for path in (folder, folder / "config.json"):
        model, assumed = resolve_model(str(path))
        assert (model.name, total_parameters(model)) == ("my-llama", 6_738_415_616)
        assert str(path) in assumed[0]


@pytest.mark.parametrize("text", ["T5-3B", "mT5 380M", "BERT-110M", "t5", "GRPO", "WAN2.1_14B (diffusion)", "nemotronh_56b"])
def test_resolve_refuses_what_is_no_decoder_with_the_reason(text: str) -> None:
    with pytest.raises(UnsupportedError, match="decoder-only transformers can be planned"):
        resolve_model(text)


@pytest.mark.parametrize("text", [
    "", "banana", "5", "175", "1..2b", "-5b", "500t", "0b", "1e400", "9" * 5000, "a/b", "x\0y", "/nope/config.json", "~",
    "é" * 300, ".",
])  # fmt: skip
def test_resolve_refuses_everything_else(text: str) -> None:
    with pytest.raises(AutoconfigError) as caught:
        resolve_model(text)
    assert isinstance(caught.value, InputError) and len(str(caught.value)) < 600


@pytest.mark.parametrize(("params", "layers", "hidden", "heads"), [
    (125e6, 12, 768, 12), (350e6, 24, 1024, 16), (1.3e9, 24, 2048, 16), (2.7e9, 32, 2560, 32), (6.7e9, 32, 4096, 32),
    (13e9, 40, 5120, 40), (175e9, 96, 12288, 96), (1008e9, 128, 25600, 160),
])  # fmt: skip
def test_sizes_of_the_papers_get_their_shape(params: float, layers: int, hidden: int, heads: int) -> None:
    model = gpt3_style(params)
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (layers, hidden, heads)
    assert "Brown" in model.sources["*"] or "Narayanan" in model.sources["*"]


@settings(max_examples=200, deadline=None)
@given(st.floats(math.log10(MIN_PARAMETERS), math.log10(MAX_PARAMETERS)))
def test_total_is_within_five_percent(exponent: float) -> None:
    params = min(max(10**exponent, MIN_PARAMETERS), MAX_PARAMETERS)
    model = gpt3_style(params)
    assert total_parameters(model) == pytest.approx(params, rel=0.05)
    assert model.hidden_size == model.num_attention_heads * model.kv_channels
    assert model.ffn_hidden_size == 4 * model.hidden_size


def test_large_sizes_have_heads_for_tensor_parallelism() -> None:
    for params in (5e9, 8e9, 30e9, 100e9, 250e9, 2e12):
        model = gpt3_style(params)
        assert model.num_attention_heads % 8 == 0 and model.kv_channels == 128


def test_depth_grows_with_size() -> None:
    depths = [gpt3_style(params).num_layers for params in (20e6, 100e6, 1e9, 10e9, 100e9, 1e12, 10e12)]
    assert depths == sorted(depths)


def test_the_name_says_it_is_style() -> None:
    assert gpt3_style(13e9).name == "gpt3-style-13b"
    assert gpt3_style(2.5e12).name == "gpt3-style-2.5t"


@pytest.mark.parametrize("params", [0, -1, 9e6, 101e12, math.inf, math.nan])
def test_sizes_out_of_range_are_refused_with_the_range(params: float) -> None:
    with pytest.raises(InputError, match="10m to 100t"):
        gpt3_style(params)


def test_a_section_is_put_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<begin>\nold\n<end>\nafter\n")
    replace_section(page, "<begin>", "<end>", "new\nlines")
    assert page.read_text() == "before\n<begin>\nnew\nlines\n<end>\nafter\n"
