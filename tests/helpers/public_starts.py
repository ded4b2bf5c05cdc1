"""The 60 start commands of public documentation (tests/data/serving_starts)."""

import re
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data" / "serving_starts"
STARTS = tomllib.loads((FOLDER / "sources.toml").read_text(encoding="utf-8"))


def mutated(text, draw):
    """A text with one slip of those that people make."""
    lines = text.split("\n")
    flags = [at for at, line in enumerate(lines) if re.search(r"(?<!\S)--?[a-z]", line)]
    kind = draw.choice(("letter", "drop line", "drop word", "swap", "number", "quote", "underscore", "cut", "value"))
    at = draw.choice(flags) if flags else draw.randrange(len(lines))
    line = lines[at]
    if kind == "letter" and (found := list(re.finditer(r"[a-z]", line))):
        place = draw.choice(found).start()
        lines[at] = line[:place] + draw.choice("abcxyz") + line[place + 1 :]
    elif kind == "drop line":
        del lines[at]
    elif kind == "drop word" and line.split():
        lines[at] = line.replace(draw.choice(line.split()), "", 1)
    elif kind == "swap" and len(flags) > 1:
        other = draw.choice(flags)
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "number":
        lines[at] = re.sub(r"[0-9]+", lambda match: draw.choice(("", "0", "-1", "1e9", "x", match[0] * 3)), line, count=1)
    elif kind == "quote":
        lines[at] = line + draw.choice(("'", '"', "\\", "$(", "`", "${", "{", "&& ("))
    elif kind == "underscore":
        lines[at] = line.replace("-", "_", draw.randrange(1, 4))
    elif kind == "cut":
        return text[: draw.randrange(len(text))]
    elif kind == "value":
        lines[at] = re.sub(r"(--[\w-]+)[ =]\S+", r"\1", line, count=1)
    return "\n".join(lines)
