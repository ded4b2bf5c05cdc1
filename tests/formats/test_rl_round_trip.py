"""What `rl` promises of a placement, `rl check` says of the file that is exported of it."""

import pytest
from autoconfig.specs.errors import InputError, UnsupportedError
from autoconfig.specs.remarks import sentences

from autoconfig.formats.post_training.check import check_text
from autoconfig.formats.post_training.export import export_texts
from tests.post_training.rl_question import answered

pytestmark = pytest.mark.usefixtures("unsearched")
QUESTIONS = (  # each with two frameworks in `make test`, with all in `make soak`
    {"model": "qwen2.5-7b", "gpus": 8},
    {"model": "qwen2.5-7b", "gpus": 8, "prompts": 64, "group_size": 8, "response_length": 1600, "max_response_length": 8192},
    {"model": "llama3-8b", "gpus": 16, "prompts": 128, "group_size": 16, "max_response_length": 2048, "prompt_length": 300},
    {"model": "qwen2.5-1.5b", "gpus": 4, "prompts": 32, "group_size": 8, "minibatch": 64, "algorithm": "dapo"},
)


@pytest.mark.parametrize(("framework", "question"), [
    pytest.param(
        framework, question, id=f"{framework}-{question['model']}-{question['gpus']}-{len(question)}",
        marks=() if (column - row) % 4 in (0, 1) else (pytest.mark.soak,),
    )
    for column, framework in enumerate(("verl", "openrlhf", "nemo-rl", "trl"))
    for row, question in enumerate(QUESTIONS)
])  # fmt: skip
def test_a_file_takes_what_its_placement_does(framework, question):
    found, compared = answered({**question, "framework": framework, "top": 8}), 0
    lengths = {"prompt_length": round(found.job.prompt_tokens), "response_length": round(found.job.responses.mean)}
    for one in found.ranked:
        try:
            texts = export_texts(found.job, one.placement)
        except UnsupportedError:
            continue
        text = next(text for name, text in texts.items() if name != "accelerate.yaml")
        checked = check_text(text, {**lengths, "model": question["model"], "gpus": question["gpus"]})
        assert not checked.broken and not checked.unknown and checked.priced is not None
        assert checked.priced.seconds == pytest.approx(one.seconds, rel=1e-3), str(one.placement.train)
        assert checked.priced.memory.training_bytes == pytest.approx(one.memory.training_bytes, rel=0.02)
        assert checked.priced.placement.offload == one.placement.offload
        compared += 1
    assert compared >= min(3, len(found.ranked))


def test_turns_of_a_plan_are_in_its_file():
    """verl's keys of its tool agent, and a remark with what they cannot say; other frameworks' files are not written."""
    question = {"model": "qwen2.5-7b", "gpus": 16, "prompts": 96, "group_size": 8, "turns": 8, "tool_time": 12.5}
    question["tool_tokens"] = 100
    found = answered({**question, "sandboxes": 256, "staleness": 1})
    one = found.ranked[0]
    text = export_texts(found.job, one.placement)["run_verl.sh"]
    for words in ("multi_turn.enable=True", "multi_turn.max_assistant_turns=8", "default_agent_loop=tool_agent", "TOOL_CONFIG"):
        assert words in text
    checked = check_text(text, {"model": "qwen2.5-7b"})
    assert checked.job.agents == found.job.agents and not checked.unknown
    assert checked.priced.seconds == pytest.approx(one.seconds, rel=1e-3)
    bare = "\n".join(line for line in text.splitlines() if "Planned for samples" not in line)
    unsaid = check_text(bare, {"model": "qwen2.5-7b"})
    assert any("--turns and --tool-time" in text for text in sentences(unsaid.run.notes))
    asked = check_text(bare, {"model": "qwen2.5-7b", "turns": 8, "tool_time": 12.5, "tool_tokens": 100, "sandboxes": 256})
    assert asked.priced.seconds == pytest.approx(one.seconds, rel=1e-3)
    with pytest.raises(UnsupportedError, match="no file of trl is written for samples of 8 turns: use --framework verl"):
        other = answered({**question, "framework": "trl"})
        export_texts(other.job, other.ranked[0].placement)


def test_a_trainer_that_pads_is_priced_padded():
    """TRL pads the samples of a device batch: its size is searched, and no tokens of a packed one can be asked for."""
    found = answered(
        {"model": "qwen2.5-7b", "gpus": 8, "framework": "trl", "response_length": 300, "max_response_length": 1024}
    )
    assert {one.placement.tokens_per_gpu for one in found.ranked} == {0}
    assert len({one.placement.train.mbs for one in found.ranked}) > 1 and any(
        "padded" in text for text in sentences(found.assumed)
    )
    with pytest.raises(InputError, match="--tokens-per-gpu: trl packs no samples"):
        answered({"model": "qwen2.5-7b", "gpus": 8, "framework": "trl", "tokens_per_gpu": 4096})
