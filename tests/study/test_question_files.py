"""A study whose question names files."""

import shutil

import pytest
from autoconfig.specs.errors import InputError
from study_help import ROOT

from autoconfig.study.session import Options
from autoconfig.study.training.session import TRAINING
from autoconfig.study.training.settings import StudySettings
from autoconfig.training.question import Request


def test_a_question_with_a_relative_path(tmp_path, monkeypatch):
    """Resumed from another folder it asks the same; a file that has changed is named, even where the candidates stay."""
    shutil.copy(ROOT / "docs" / "examples" / "tiny_model.json", tmp_path / "tiny.json")
    (tmp_path / "elsewhere").mkdir()
    given = StudySettings(request=Request(model="tiny.json", gpus=2, gpu="a100-80gb", software="megatron-local"))
    options = Options(folder=tmp_path, python="unused")
    monkeypatch.chdir(tmp_path)
    TRAINING.open("s", given, options, resume=False).close()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = TRAINING.open("s", None, options, resume=True)
    again.close()
    assert again.work.settings.request.model == str(tmp_path / "tiny.json")
    file = tmp_path / "tiny.json"
    file.write_text(file.read_text().replace('"vocab_size": ', '"vocab_size": 1'))
    with pytest.raises(InputError, match=r"tiny.json \(--model\) has changed since the study was begun"):
        TRAINING.open("s", None, options, resume=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="has changed since"):
        TRAINING.open("s", given, options, resume=False)
