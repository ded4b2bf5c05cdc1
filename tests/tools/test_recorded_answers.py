"""Recorded answers: what is replaced, what a comparison finds and shows, and that the questions can be read."""

import pytest

from tools.recorded_answers.compare import compare, diff, report, shown_lines
from tools.recorded_answers.record import chosen, load, normalised


def recording(folder, answers):
    """A recording with these texts: {question: {file: text}}."""
    for question, files in answers.items():
        for name, text in files.items():
            path = folder / question / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (folder / "recording.json").write_text(f"{folder}")  # how it was made is not compared
    return folder


def both(tmp_path, old, new, **options):
    return compare(recording(tmp_path / "old", old), recording(tmp_path / "new", new), **options)


def test_equal_recordings_are_alike(tmp_path):
    answers = {"a": {"stdout": "x\n", "files/run/train.sh": "y\n"}, "b": {"stdout": ""}}
    found = both(tmp_path, answers, answers)
    assert found.alike() and found.same == ["a", "b"]
    assert list(report(found, 3, 200)) == ["2 alike, 0 different, 0 only in the old, 0 only in the new recording"]


def test_every_difference_is_found_and_summed_up(tmp_path):
    same = {"same": {"stdout": "x"}}
    old = {"a": {"stdout": "one\ntwo\nthree\n", "exit_code": "0\n"}, "gone": {"stdout": ""}, **same}
    new = {"a": {"stdout": "one\n2\nthree\n", "exit_code": "0\n", "files/x.csv": "1\n"}, "come": {"stdout": ""}, **same}
    found = both(tmp_path, old, new)
    assert not found.alike() and found.different() == ["a"]
    lines = list(report(found, 1, 200))
    assert "-two" in lines and "+2" in lines and "only in the new recording: a/files/x.csv (2 characters)" in lines
    assert lines[-4:] == [
        "different  a: files/x.csv, stdout", "only old   gone", "only new   come",
        "1 alike, 1 different, 1 only in the old, 1 only in the new recording",
    ]  # fmt: skip
    assert both(tmp_path, old, new, common=True).only_old == []
    assert "... 3 more lines" in "\n".join(report(found, 1, 4))


def test_hunks_are_numbered_from_the_beginning_of_the_file(tmp_path):
    text = [f"{number}\n" for number in range(100)]
    found = both(tmp_path, {"a": {"x": "".join(text)}}, {"a": {"x": "".join([*text[:60], "new\n", *text[60:]])}})
    assert "@@ -59,4 +59,5 @@" in list(diff(found.differences[0], 2))


def test_json_and_long_lines_are_laid_out(tmp_path):
    assert shown_lines('{"a": 1, "b": [2]}') == ["{\n", ' "a": 1,\n', ' "b": [\n', "  2\n", " ]\n", "}\n"]
    assert len(shown_lines("<p>word</p>" * 100)) == 200
    found = both(tmp_path, {"a": {"x": '{"a": 1, "b": 2}'}}, {"a": {"x": '{"a": 1, "b": 3}'}})
    assert [line for line in diff(found.differences[0]) if line[:2] in ("- ", "+ ")] == ['- "b": 2', '+ "b": 3']


@pytest.mark.parametrize(("old", "new"), [('{"a":1}', '{"a": 1}'), ("x\n", "x"), ("a\r\n", "a\n")])
def test_layout_counts_too(tmp_path, old, new):
    found = both(tmp_path, {"a": {"x": old}}, {"a": {"x": new}})
    assert not found.alike() and any(line.startswith("-") and not line.startswith("---") for line in diff(found.differences[0]))


def test_intended_changes_are_said_beforehand(tmp_path):
    old, new = {"a": {"x": "see specs/gpu.py and y\n"}}, {"a": {"x": "see autoconfig/specs/gpu.py and y\n"}}
    assert both(tmp_path, old, new, replaced=((r"\bspecs/", "autoconfig/specs/"),)).alike()


def test_no_recording_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no recording"):
        compare(tmp_path / "nowhere", tmp_path)


def test_only_what_no_two_runs_have_alike_is_replaced():
    hidden = {"/tmp/x": "<place>", "/tmp/x/env": "<environment>"}
    text = "wrote /tmp/x/env/a and /tmp/x/b at 2026-01-31T23:59:59.5+00:00 for 12345678-1234-1234-1234-123456789abc"
    assert normalised(text, hidden) == "wrote <environment>/a and <place>/b at <time> for <uuid>"
    for kept in ("step 6.10 s at 45.7 GiB", "calibration published-492-11fac8f8", "in 2026-01-31", "a 30.5 s"):
        assert normalised(kept, hidden) == kept


def test_the_questions_can_be_read():
    questions, requests = load()
    assert len(questions) + len(requests) > 100
    assert all(question.input_files() or not question.inputs for question in questions)
    assert not any(question.slow for question in chosen(questions, requests, "*", quick=True)[0])
    some, none = chosen(questions, requests, "search-175b*")
    assert len(some) == 2 and not none
    assert chosen(questions, requests, "http-plans") == ([], requests)
    with pytest.raises(ValueError, match="no question is named"):
        chosen(questions, requests, "nothing*")
