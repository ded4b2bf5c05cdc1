"""The real parsers of post-training and of fine-tuning: {"framework", "name", "text"} as JSON lines in, {"ok", "said"} out.

Runs in an environment of its own (`make judge`: .venv-judge-rl) with verl, trl and openrlhf; heavy imports are replaced.
NeMo-RL has no wheel: its source is where NEMO_RL_PATH says.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import runpy
import shlex
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock


def words_of(text: str, program: str) -> list[str]:
    """The words behind a program of a script, its continuation lines joined and the variables that the user gives filled in."""
    joined = text.replace("\\\n", " ")
    line = next(line for line in joined.splitlines() if program in line)
    for name in ("TRAIN_FILES", "VAL_FILES", "PROMPTS", "REWARD"):
        line = line.replace(f'"${{{name}:?give {name}}}"', f"http://{name.lower()}")
    return [word for word in shlex.split(line.replace('"$MODEL"', "/tmp").replace('"$@"', ""))][3:]


def checkpoint() -> str:
    """A folder with a config.json and a tokenizer, which verl's model dataclass opens."""
    tokenizers = import_module("tokenizers")

    folder = Path.cwd()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}))
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")).save(
        str(folder / "tokenizer.json")
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return str(folder)


def verl(text: str) -> None:
    """hydra's composition, verl's validation, and its dataclasses."""
    package, hydra, config_tools = (import_module(name) for name in ("verl", "hydra", "verl.utils.config"))

    words = [word.replace("=/tmp", f"={checkpoint()}") for word in words_of(text, "verl.trainer.main_ppo")]
    name = next(word for word in words if word.startswith("--config-name=")).partition("=")[2]
    folder = os.path.join(os.path.dirname(str(package.__file__)), "trainer", "config")
    with hydra.initialize_config_dir(folder, version_base=None):
        config = hydra.compose(name, overrides=[word for word in words if not word.startswith("--")])
    import_module("omegaconf").OmegaConf.resolve(config)
    ppo = config.algorithm.adv_estimator == "gae"
    config_tools.validate_config(config, use_reference_policy=bool(config.actor_rollout_ref.actor.use_kl_loss), use_critic=ppo)
    config_tools.omega_conf_to_dataclass(config.actor_rollout_ref.rollout)


def trl(text: str, config: str = "GRPOConfig", **more: str) -> Any:
    """TRL's own parser of the command `trl grpo --config`; its ModelConfig."""
    import yaml

    trl, transformers = import_module("trl"), import_module("transformers")
    values = {**yaml.safe_load(text), "use_cpu": True, "bf16": False, **more}
    return transformers.HfArgumentParser((getattr(trl, config), trl.ModelConfig)).parse_dict(values)[1]


def trl_sft(text: str) -> None:
    """TRL's own parser of the command `trl sft --config`, and PEFT's LoraConfig of what it says of adapters."""
    adapters = import_module("trl").get_peft_config(trl(text, "SFTConfig", model_name_or_path="checkpoint"))
    if adapters is not None and not adapters.target_modules:
        raise RuntimeError("no layers have adapters")


FACTORY = ("ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments", "GeneratingArguments")


def llama_factory(text: str) -> None:
    """LLaMA-Factory's dataclasses as transformers reads them from `llamafactory-cli train FILE`; the DeepSpeed file that it
    names has a judge of its own."""
    import yaml

    os.environ["DISABLE_VERSION_CHECK"] = "1"  # it pins an older transformers
    hparams, transformers = import_module("llamafactory.hparams"), import_module("transformers")
    values = {**yaml.safe_load(text), "use_cpu": True, "bf16": False, "deepspeed": None}
    classes = tuple(getattr(hparams, name) for name in FACTORY)
    model = transformers.HfArgumentParser(classes).parse_dict(values)[0]
    if model.quantization_bit not in (None, 4, 8):
        raise RuntimeError(f"quantization_bit {model.quantization_bit}")


def axolotl(text: str) -> None:
    """axolotl's own schema, which passes unknown keys over: these are refused here, those of fsdp_config, too."""
    import yaml

    schema, fsdp = import_module("axolotl.utils.schemas.config"), import_module("axolotl.utils.schemas.fsdp")
    values = {"datasets": [{"path": "data", "type": "alpaca"}], "learning_rate": 1e-4, **yaml.safe_load(text)}
    values.setdefault("base_model", "checkpoint")
    unknown = set(values) - set(schema.AxolotlInputConfig.model_fields)
    if "axolotl.integrations.liger.LigerPlugin" in values.get("plugins", ()):
        unknown -= set(_liger_arguments().model_fields)
    unknown |= set(values.get("fsdp_config", {})) - set(fsdp.FSDPConfig.model_fields)
    if unknown:
        raise KeyError(", ".join(sorted(unknown)))
    schema.AxolotlInputConfig(**values)


def _liger_arguments() -> Any:
    """The plugin's own schema, whose package imports kernels."""
    place = Path(import_module("axolotl").__path__[0]) / "integrations" / "liger" / "args.py"
    spec = importlib.util.spec_from_file_location("liger_arguments", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["liger_arguments"] = module  # pydantic looks the names of its annotations up there
    spec.loader.exec_module(module)
    return module.LigerArgs


class _Names(type):
    """Class of classes whose every name is another class like them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {"__init__": lambda self, *words, **named: None, "__call__": _Names.decorate})

    @staticmethod
    def decorate(self: Any, *words: Any, **named: Any) -> Any:
        """What a decorator gives back."""
        return words[0] if words else self


class _Finder(Loader):
    """Finds packages and all below them that are not there; every name of them is what `made` makes."""

    def __init__(self, packages: tuple[str, ...], made: Callable[[str], Any]) -> None:
        self.packages, self.made = packages, made

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        inside = any(name == package or name.startswith(f"{package}.") for package in self.packages)
        return ModuleSpec(name, self, is_package=True) if inside else None

    def exec_module(self, module: Any) -> None:
        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return self.made(f"{module.__name__}.{name}")

        module.__getattr__ = attribute


HEAVY = ("deepspeed", "vllm", "flash_attn", "bitsandbytes", "aiohttp", "ray", "openrlhf.trainer", "openrlhf.models")
NOT_READ = ("absl", "mlflow", "pynvml", "soundfile", "swanlab", "torch.utils.tensorboard", "torchdata", "wandb", "zmq")
"""Packages that NeMo-RL imports beside its configuration, some of whose names other classes inherit."""


@cache
def stand_in(packages: tuple[str, ...], made: Callable[[str], Any]) -> None:
    """Replace packages for good: the frameworks that need the real ones are judged by other processes."""
    sys.meta_path.insert(0, _Finder(packages, made))


def mocked(name: str) -> mock.MagicMock:
    """A name of a package that is not there."""
    return mock.MagicMock(name=name)


def inherited(name: str) -> Any:
    """A class in place of a name of a package that is not there."""
    return getattr(_Names("", (), {}), name.rpartition(".")[2])


def openrlhf(text: str) -> None:
    """train_ppo_ray's parser and its checks, up to where Ray would start."""

    class Started(Exception):
        pass

    stand_in(HEAVY, mocked)
    words = words_of(text, "openrlhf.cli.train_ppo_ray")
    ray: Any = import_module("ray")
    ray.is_initialized = mock.Mock(return_value=False)
    ray.init = mock.Mock(side_effect=Started)
    try:
        with mock.patch.object(sys, "argv", ["train_ppo_ray", *words]):
            runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    except Started:
        return
    raise RuntimeError("Ray was not started")


def nemo_rl_master_config(root: Path) -> Any:
    """NeMo-RL's MasterConfig from the source of a release, what it imports beside its configuration replaced."""
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
        stand_in(NOT_READ, inherited)
        import_module("transformers.models.auto.processing_auto")  # after which the package is another object
        transformers: Any = import_module("transformers")
        transformers.__version__ = "5.11.0"  # 0.7.0 patches tokenizers, and refuses 5.12; none is read here
    return import_module("nemo_rl.algorithms.grpo").MasterConfig


def nemo_rl(text: str) -> None:
    """The configuration over its defaults as NeMo-RL's own loader merges them, read by its MasterConfig (NEMO_RL_PATH)."""
    root = Path(os.environ["NEMO_RL_PATH"])
    master, tools = nemo_rl_master_config(root), import_module("nemo_rl.utils.config")
    file = Path.cwd() / "grpo.yaml"
    file.write_text(text, encoding="utf-8")
    merged = tools.load_config_with_inheritance(file, root / "examples" / "configs")
    tools.register_omegaconf_resolvers()
    master(**import_module("omegaconf").OmegaConf.to_container(merged, resolve=True))


JUDGES = {
    "verl": verl,
    "trl": trl,
    "trl-sft": trl_sft,
    "llama-factory": llama_factory,
    "axolotl": axolotl,
    "openrlhf": openrlhf,
    "nemo-rl": nemo_rl,
}


def main() -> None:
    """Judge every line of the standard input."""
    out = sys.stdout
    for line in sys.stdin:
        case = json.loads(line)
        output = io.StringIO()
        try:
            with (
                contextlib.redirect_stdout(output),
                contextlib.redirect_stderr(output),
                tempfile.TemporaryDirectory() as folder,
            ):
                os.chdir(folder)
                JUDGES[case["framework"]](case["text"])
                os.chdir(Path(folder).parent)
            answer = {"ok": True, "said": ""}
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            answer = {"ok": False, "said": f"{type(error).__name__}: {error} {output.getvalue()[-300:]}"}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
