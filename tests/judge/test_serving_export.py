"""Exported Megatron inference scripts before Megatron-LM's own argument parser."""

import argparse

import pytest

from autoconfig.engines.export import export_texts
from autoconfig.serving.answer import answer
from autoconfig.serving.request import ServeRequest
from tools.judge.engine_arguments import arguments_of


@pytest.mark.filterwarnings("ignore")  # of torch and megatron-core at import
@pytest.mark.parametrize("fix", [("tp=2", "weights=bf16"), ("tp=1", "pp=2", "weights=fp8")])
def test_megatron_reads_every_inference_argument(tmp_path, fix):
    from megatron.training.arguments import add_megatron_arguments

    request = ServeRequest(model="llama3-8b", gpus=2, engine="megatron", fix=fix, simulate=0, disaggregated=False)
    found = answer(request)
    plan = found.reports[0].plan.decode
    script = tmp_path / "serve.sh"
    script.write_text(export_texts(found.question, found.reports[0])["serve.sh"], encoding="utf-8")
    program, arguments = arguments_of(script)
    assert program == "torchrun" and arguments[2] == "megatron/tools/run_text_generation_server.py"
    read, unknown = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False)).parse_known_args(arguments[3:])
    assert unknown == ["--port", "8000"]  # the server's own
    assert (read.tensor_model_parallel_size, read.pipeline_model_parallel_size) == (plan.tp, plan.pp)
    assert read.inference_dynamic_batching_max_tokens == plan.tokens and read.inference_dynamic_batching
    assert read.inference_max_seq_length == 2000 and (read.fp8 is not None) == (plan.weights == "fp8")
