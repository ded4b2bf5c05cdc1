"""What may stand beside --resume: nothing of a question that would go unread."""

import pytest


@pytest.mark.parametrize("part", [["--gpus", "4"], ["--seq-length", "64"], ["--device", "cpu"], ["--objective", "headroom"]])
def test_half_a_question_beside_resume_is_refused(part, autoconfig, tmp_path):
    ended = autoconfig.run("search", "--resume", "one", "--folder", str(tmp_path / "here"), *part)
    assert ended.exit_code == 2 and f"leave out {part[0]}" in ended.stderr
    assert not (tmp_path / "here").exists()


def test_budget_and_place_may_stand_beside_it(autoconfig, tmp_path):
    place = ("--folder", str(tmp_path / "here"))
    ended = autoconfig.run("search", "--resume", "one", *place, "--budget", "1trial", "--price", "2")
    assert ended.exit_code == 2 and "leave out" not in ended.stderr and "no studies in" in ended.stderr
