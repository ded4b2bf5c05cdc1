"""Files that are written in part."""

from autoconfig.specs.files import replace_section


def test_a_section_is_put_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<begin>\nold\n<end>\nafter\n")
    replace_section(page, "<begin>", "<end>", "new\nlines")
    assert page.read_text() == "before\n<begin>\nnew\nlines\n<end>\nafter\n"
