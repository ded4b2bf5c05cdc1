"""What megatron-core 0.19.2 says about an argument list: its own functions, in the order in which a run calls them.

    arguments  parse_args, validate_args, the micro-batch calculator
    config     core_transformer_config_from_args, the optimizer's and DDP's configs, the layers of every stage and chunk
    groups     parallel_state.initialize_model_parallel up to the first process group
    schedule   forward_backward_pipelining_with_interleaving up to its first micro-batch

Nothing here decides legality. Stand-ins replace what a machine without GPU and Transformer Engine cannot answer: the
device's compute capability, whether kernels of sparse attention are installed,
Transformer Engine's version and optimizer signature, and the first call behind the last check
of a function.
Needs the environment of `make judge`.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

warnings.simplefilter("ignore")
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")

from autoconfig.trainer.host.limits import leave_out_compiler  # noqa: E402

leave_out_compiler()  # nothing is run here
import megatron.core.models.common.embeddings.rope_utils as rope_utils  # noqa: E402
import megatron.core.num_microbatches_calculator as microbatches  # noqa: E402
import megatron.core.parallel_state as parallel_state  # noqa: E402
import megatron.core.pipeline_parallel.schedules as schedules  # noqa: E402
import megatron.core.transformer.moe.moe_utils as moe_utils  # noqa: E402
import megatron.core.transformer.transformer_config as transformer_config  # noqa: E402
import megatron.core.utils as core_utils  # noqa: E402
import megatron.training.argument_utils as argument_utils  # noqa: E402
import megatron.training.arguments as arguments  # noqa: E402
import torch  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.transformer.moe.moe_layer import MoELayer  # noqa: E402
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout  # noqa: E402
from megatron.core.transformer.transformer_block import get_num_layers_to_build  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from megatron.training.training import get_megatron_ddp_config, get_megatron_optimizer_config  # noqa: E402
from packaging.version import Version  # noqa: E402

STAGES = ("arguments", "config", "groups", "schedule")
TRANSFORMER_ENGINE = "2.13.0"
WATCHED = ("sequence_parallel", "fp8_param_gather", "use_distributed_optimizer", "overlap_param_gather", "async_save")
"""Arguments that validate_args is known to change without refusing, watched where they are not given, too."""
_UNLIKE_DEST = {"disable_bias_linear": "add_bias_linear"}
_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.uint8: "fp8"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judge's answer to one argument list."""

    accepted: bool
    stage: str = ""
    message: str = ""
    kind: str = ""
    where: str = ""
    changed: dict[str, list[Any]] = field(default_factory=dict)
    """Arguments that were changed silently: name -> [asked, used]."""
    printed: str = ""
    """What Megatron-LM printed, its arguments first; of an argument list that it accepts."""


class _ChecksPassedError(Exception):
    """Raised by a stand-in behind a function's last check."""


def _pass(*_: object, **__: object) -> None:
    raise _ChecksPassedError


def _stand_in_transformer_engine() -> None:
    """After megatron's imports: they must not believe that kernels are there, only the version checks shall."""

    class FusedAdam:
        def __init__(
            self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any
        ) -> None: ...

    names = ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.optimizers")
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    sys.modules[names[-1]].FusedAdam = FusedAdam  # type: ignore[attr-defined]
    core_utils._te_version = Version(TRANSFORMER_ENGINE)
    rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb or _pass
    for name in ("permute", "permute_with_probs", "sort_chunks_by_index", "sort_chunks_by_index_with_probs", "unpermute"):
        setattr(moe_utils, f"fused_{name}", getattr(moe_utils, f"fused_{name}") or _pass)


def _read_help_texts_once() -> None:
    """The parser reads the help of its 800 arguments from source code, anew each time: four fifths of a verdict."""
    read = argument_utils.ArgumentGroupFactory._get_field_docstrings
    texts: dict[type, dict[str, str]] = {}

    def remembered(self: Any, config: type) -> dict[str, str]:
        if config not in texts:
            texts[config] = read(self, config)
        return dict(texts[config])

    argument_utils.ArgumentGroupFactory._get_field_docstrings = remembered


_stand_in_transformer_engine()
_read_help_texts_once()


def judge(argument_list: list[str], world_size: int, environment: dict[str, str], capability: float = 9.0) -> Verdict:
    """Put one argument list through all stages."""
    printed = io.StringIO()
    with _world(world_size, environment, capability), contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changed: dict[str, list[Any]] = {}
        namespace: dict[str, Any] = {}
        steps: tuple[tuple[str, Callable[[dict[str, Any]], None]], ...] = (
            ("arguments", lambda found: _arguments(found, argument_list, changed)),
            ("config", lambda found: _config(found, changed)),
            ("groups", _groups),
            ("schedule", _schedule),
        )
        for stage, step in steps:
            refused = _refusal(stage, step, namespace)
            if refused is not None:
                return refused
        return Verdict(accepted=True, changed=changed, printed=printed.getvalue())


def judge_degrees(degrees: dict[str, int], sequence_parallel: bool) -> Verdict:
    """What megatron-core says of the degrees of a recipe whose model is not known, on a stand-in model that fits them. As a
    framework does that builds megatron-core's config itself (Megatron-Bridge, NeMo) and not Megatron-LM's arguments. `degrees`:
    gpus, tp, pp, cp, vpp, ep, etp, mbs, gbs."""
    d = degrees
    world = {"args": types.SimpleNamespace(**_groups_of(d)), "degrees": d, "sequence_parallel": sequence_parallel}
    with _world(d["gpus"], {}, 9.0), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = (("groups", _groups), ("config", _stand_in_config), ("schedule", _schedule), ("layers", _experts_forward))
        refused = (_refusal(stage, step, world) for stage, step in steps)
        return next((verdict for verdict in refused if verdict is not None), Verdict(accepted=True))


def _groups_of(d: dict[str, int]) -> dict[str, Any]:
    """What the steps ask of Megatron-LM's arguments."""
    return {
        "world_size": d["gpus"],
        "tensor_model_parallel_size": d["tp"],
        "pipeline_model_parallel_size": d["pp"],
        "virtual_pipeline_model_parallel_size": d["vpp"] if d["vpp"] > 1 else None,
        "context_parallel_size": d["cp"],
        "expert_model_parallel_size": d["ep"],
        "expert_tensor_parallel_size": d["etp"],
        "num_distributed_optimizer_instances": 1,
        "use_tp_pp_dp_mapping": False,
        "hierarchical_context_parallel_sizes": None,
        "seq_length": 4096,
        "micro_batch_size": d["mbs"],
    }


def _stand_in_config(world: dict[str, Any]) -> None:
    d = world["degrees"]
    experts = {"num_moe_experts": 2 * d["ep"], "moe_router_topk": 2} if d["ep"] > 1 else {}
    world["config"] = TransformerConfig(
        num_layers=d["pp"] * d["vpp"],
        hidden_size=128 * d["tp"],
        num_attention_heads=d["tp"],
        tensor_model_parallel_size=d["tp"],
        pipeline_model_parallel_size=d["pp"],
        virtual_pipeline_model_parallel_size=d["vpp"] if d["vpp"] > 1 else None,
        context_parallel_size=d["cp"],
        expert_model_parallel_size=d["ep"],
        expert_tensor_parallel_size=d["etp"],
        sequence_parallel=world["sequence_parallel"],
        pipeline_dtype=torch.bfloat16,
        bf16=True,
        **experts,
    )
    microbatches.init_num_microbatches_calculator(
        rank=1,
        rampup_batch_size=None,
        global_batch_size=d["gbs"],
        micro_batch_size=d["mbs"],
        data_parallel_size=d["gpus"] // (d["tp"] * d["pp"] * d["cp"]),
    )


def _experts_forward(world: dict[str, Any]) -> None:
    """The check at the head of a mixture-of-experts layer's training forward, up to its first use of the layer."""
    config = world["config"]
    if not config.num_moe_experts:
        return

    class Layer:
        training, attn_tp_group = True, _Ranks(config.tensor_model_parallel_size)

        def __getattr__(self, name: str) -> Any:
            raise _ChecksPassedError

    layer = Layer()
    layer.config = config  # type: ignore[attr-defined]
    with contextlib.suppress(_ChecksPassedError):
        MoELayer.forward(layer, torch.zeros(1, 1, 1))


def _refusal(stage: str, step: Callable[[dict[str, Any]], None], namespace: dict[str, Any]) -> Verdict | None:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            step(namespace)
    except (Exception, SystemExit) as error:
        frame = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}megatron{os.sep}" in f.filename]
        place = frame[-1] if frame else traceback.extract_tb(error.__traceback__)[-1]
        text = str(error)
        if isinstance(error, SystemExit):
            text = errors.getvalue().strip().splitlines()[-1] if errors.getvalue().strip() else "exit"
        elif not text.strip():
            text = place.line or ""
        short = place.filename.rpartition(f"site-packages{os.sep}")[2]
        return Verdict(
            accepted=False,
            stage=stage,
            message=" ".join(text.split()),
            kind=type(error).__name__,
            where=f"{short}:{place.lineno}",
        )
    return None


@contextlib.contextmanager
def _world(world_size: int, environment: dict[str, str], capability: float) -> Iterator[None]:
    major, minor = int(capability), round(capability * 10) % 10
    before = dict(os.environ)
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update({**environment, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size)})
    try:
        with (
            mock.patch.object(arguments, "get_device_arch_version", lambda: major),
            mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (major, minor)),
            mock.patch.object(transformer_config, "_validate_dsa_kernel_backend_dependencies", lambda *_: None),
            mock.patch.object(torch.distributed, "is_initialized", lambda: False),
            mock.patch.object(parallel_state, "_MPU_PIPELINE_MODEL_PARALLEL_RANK", 0),  # a layout is logged as rank 0 sees it
        ):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        torch.use_deterministic_algorithms(False)
        microbatches.unset_num_microbatches_calculator()
        parallel_state._VIRTUAL_PIPELINE_MODEL_PARALLEL_RANK = None
        parallel_state._VIRTUAL_PIPELINE_MODEL_PARALLEL_WORLD_SIZE = None


def _arguments(world: dict[str, Any], argument_list: list[str], changed: dict[str, list[Any]]) -> None:
    with mock.patch.object(sys, "argv", ["pretrain_gpt.py", *argument_list]):
        args = arguments.parse_args()
    before = {name: _plain(getattr(args, name, None)) for name in {*WATCHED, *_given(argument_list, args)}}
    args = arguments.validate_args(args)
    microbatches.init_num_microbatches_calculator(
        rank=1,
        global_batch_size=args.global_batch_size,
        micro_batch_size=args.micro_batch_size,
        data_parallel_size=args.data_parallel_size,
        decrease_batch_size_if_needed=args.decrease_batch_size_if_needed,
        step_batch_size_schedule=args.step_batch_size_schedule,
        seq_length=args.seq_length,
    )
    world["args"], world["asked"] = args, before
    changed.update(_differences(before, args))


def _given(argument_list: list[str], args: Any) -> list[str]:
    names = (word[2:].replace("-", "_") for word in argument_list if word.startswith("--"))
    destinations = (_UNLIKE_DEST.get(name, name if hasattr(args, name) else name.removeprefix("no_")) for name in names)
    return [name for name in destinations if hasattr(args, name)]


def _plain(value: Any) -> Any:
    """Comparable before and after: types by their names, a list of one as its element, a layout as its text."""
    if isinstance(value, list | tuple):
        return _plain(value[0]) if len(value) == 1 else [_plain(item) for item in value]
    if isinstance(value, PipelineParallelLayerLayout):
        return str(value)
    return _TYPES.get(value, value) if isinstance(value, torch.dtype) else value


def _differences(before: dict[str, Any], used: Any) -> dict[str, list[Any]]:
    """Name -> [asked, used] of what `used` has otherwise."""
    now = {name: _plain(getattr(used, name)) for name in before if hasattr(used, name)}
    return {name: [before[name], value] for name, value in now.items() if value != before[name]}


def _config(world: dict[str, Any], changed: dict[str, list[Any]]) -> None:
    args = world["args"]
    config = arguments.core_transformer_config_from_args(args)
    get_megatron_optimizer_config(args)
    get_megatron_ddp_config(args)
    for rank in range(config.pipeline_model_parallel_size):
        for chunk in range(config.virtual_pipeline_model_parallel_size or 1):
            get_num_layers_to_build(config, vp_stage=chunk, pp_rank=rank)
    world["config"] = config
    changed.update(_differences(world["asked"], config))


def _groups(world: dict[str, Any]) -> None:
    args = world["args"]
    with (
        mock.patch.object(torch.distributed, "is_initialized", lambda: True),
        mock.patch.object(torch.distributed, "get_world_size", lambda *_: args.world_size),
        mock.patch.object(torch.distributed, "get_rank", lambda *_: 0),
        mock.patch.object(parallel_state, "create_group", _pass),
        contextlib.suppress(_ChecksPassedError),
    ):
        parallel_state.initialize_model_parallel(
            args.tensor_model_parallel_size,
            args.pipeline_model_parallel_size,
            args.virtual_pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
            order="tp-cp-ep-dp-pp" if not args.use_tp_pp_dp_mapping else "tp-cp-ep-pp-dp",
        )
        raise RuntimeError("no process group was made")  # megatron changed: the stand-in was never reached


@dataclass(frozen=True)
class _Ranks:
    """What the schedule asks of a process group."""

    members: int

    def size(self) -> int:
        return self.members

    def rank(self) -> int:
        return 0


def _schedule(world: dict[str, Any]) -> None:
    args, config = world["args"], world["config"]
    chunks = config.virtual_pipeline_model_parallel_size
    if config.pipeline_model_parallel_size == 1 or chunks is None:
        return  # 1F1B and no pipelining take any number of micro-batches
    chunk = torch.nn.Module()
    chunk.config, chunk.model_type = config, ModelType.encoder_or_decoder
    pipeline = _Ranks(config.pipeline_model_parallel_size)
    zeros = torch.zeros
    with (
        mock.patch.object(torch, "zeros", lambda *a, **k: zeros(*a, **{**k, "device": "cpu"})),
        mock.patch.object(schedules, "get_pp_rank_microbatches", _pass),
        contextlib.suppress(_ChecksPassedError),
    ):
        schedules.forward_backward_pipelining_with_interleaving(
            forward_step_func=_pass,
            data_iterator=[iter(())] * chunks,
            model=[chunk] * chunks,
            num_microbatches=microbatches.get_num_microbatches(),
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
            p2p_communicator=types.SimpleNamespace(config=config, pp_group=pipeline),
            pg_collection=types.SimpleNamespace(
                tp=_Ranks(config.tensor_model_parallel_size), cp=_Ranks(config.context_parallel_size), pp=pipeline
            ),
        )
        raise RuntimeError("no micro-batch was counted")  # megatron changed: the stand-in was never reached
