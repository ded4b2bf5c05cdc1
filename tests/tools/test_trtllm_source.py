"""The judge of TensorRT-LLM's options refuses what source files of that form refuse (its own files need not be here)."""

import shutil

import click
import pytest

from autoconfig.engines.export import export_texts
from tools.judge.serving_plans import deployments
from tools.judge.trtllm_source import Options, command, judge

LLM_ARGS = '''
from tensorrt_llm.bindings import Nothing
def Field(default=..., *, status=None, **kwargs):
    return PydanticField(default, **kwargs)
class StrictBaseModel(BaseModel):
    model_config = {"extra": "forbid"}
class CudaGraphConfig(StrictBaseModel):
    max_batch_size: int = Field(default=0)
    enable_padding: bool = Field(default=False)
@Nothing.mirror
class KvCacheConfig(StrictBaseModel, Nothing):
    dtype: str = Field(default="auto", status="beta")
    free_gpu_memory_fraction: Optional[float] = Field(default=0.9)
    @field_validator("free_gpu_memory_fraction")
    @classmethod
    def validate(cls, v):
        if not 0 <= v <= 1:
            raise ValueError("a share")
        return v
class CacheTransceiverConfig(StrictBaseModel):
    backend: Optional[Literal["DEFAULT", "UCX"]] = Field(default=None)
    max_tokens_in_buffer: Optional[int] = Field(default=None)
class BaseLlmArgs(StrictBaseModel):
    enable_chunked_prefill: bool = Field(default=False)
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    cache_transceiver_config: Optional[CacheTransceiverConfig] = Field(default=None)
class TorchLlmArgs(BaseLlmArgs):
    enable_attention_dp: bool = Field(default=False)
    disable_overlap_scheduler: bool = Field(default=False)
    cuda_graph_config: Optional[CudaGraphConfig] = Field(default=None)
'''
SERVE = '''
@click.command("serve")
@click.argument("model", type=str)
@click.option("--host", type=str, default="localhost")
@click.option("--port", type=int, default=8000)
@click.option("--backend", type=ChoiceWithAlias(["pytorch", "tensorrt"], {"trt": "tensorrt"}), default="pytorch")
@click.option("--tensor_parallel_size", "--tp_size", type=int)
@click.option("--pipeline_parallel_size", "--pp_size", type=int)
@click.option("--moe_expert_parallel_size", "--ep_size", type=int)
@click.option("--max_batch_size", type=int)
@click.option("--max_num_tokens", type=int)
@click.option("--max_seq_len", type=int)
@click.option("--config", "--extra_llm_api_options", "extra_llm_api_options", type=str)
@click.option("--fail_fast", is_flag=True, default=False)
def serve(): ...
'''


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensorrt_llm")
    (folder / "llm_args.py").write_text(LLM_ARGS, encoding="utf-8")
    (folder / "serve.py").write_text(SERVE, encoding="utf-8")
    return command(folder / "serve.py"), Options(folder / "llm_args.py")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disaggregated")
    found = ((question, one) for name, question, one in deployments("trtllm-1.2") if name == "llama3-70b-8-disaggregated")
    for file, text in export_texts(*next(found)).items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def test_an_exported_deployment_is_accepted(source, exported):
    assert judge(exported, *source) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("prefill.yaml", "enable_padding", "padding", "padding"),
        ("decode.yaml", "backend: DEFAULT", "backend: PIGEON", "DEFAULT"),
        ("decode.yaml", "fraction: 0.95", "fraction: 1.95", "a share"),
        ("decode.yaml", "enable_attention_dp", "attention_dp", "no attention_dp"),
        ("decode.yaml", "enable_attention_dp: false", "enable_attention_dp: 3", "bool"),
        ("decode.sh", "--max_num_tokens", "--most_tokens", "--most_tokens"),
        ("decode.sh", "--backend pytorch", "--backend jax", "jax"),
        ("decode.sh", "--tp_size 2", "--tp_size 1", "the plan has 2"),
    ],
)
def test_what_the_source_does_not_say_is_refused(source, exported, tmp_path, file, old, new, words):
    copy = tmp_path / "copy"
    shutil.copytree(exported, copy)
    text = (copy / file).read_text(encoding="utf-8")
    assert old in text
    (copy / file).write_text(text.replace(old, new), encoding="utf-8")
    wrong = judge(copy, *source)
    assert len(wrong) == 1 and words in wrong[0], wrong


def test_a_flag_takes_no_value(source):
    assert isinstance(source[0], click.Command)
    assert source[0].make_context("serve", ["model", "--fail_fast"]).params["fail_fast"] is True
