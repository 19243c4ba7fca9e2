"""What a bare interpreter lacks: whether an error is its fault, and code without imports that are never used.

"The sandbox lacks it" is no verdict, so a wrong program may want it. It must then truly import a module that is lacking
and use its name; text of an error, or an import for nothing, does not help it. A wrong program that does so is left out
of the grading, as a right one is.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

# Modules that programs rightly use and a bare interpreter has not. Another missing module is the code's own fault.
KNOWN = set(
    "numpy scipy pandas sklearn matplotlib seaborn sympy networkx sortedcontainers requests bs4 yaml nltk torch PIL "
    "cv2 statsmodels dateutil pytz psutil regex".split()
)
_LAYOUT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_NOTHING = (tokenize.NL, tokenize.COMMENT)


@dataclass(frozen=True)
class Import:
    """One import statement: its parts (a module's first name, the name that is bound or `*`, the words), the word it
    begins with, and its tokens from the first to the one after the last."""

    parts: tuple[tuple[str, str, str], ...]
    word: str
    first: int
    end: int


def missing(error: str) -> str:
    """The module that an error says is not there, by its first name, if programs rightly use it; else ""."""
    if not error.startswith("ModuleNotFoundError: No module named '"):
        return ""
    root = error.split("'")[1].partition(".")[0]
    return root if root in KNOWN or root in sys.stdlib_module_names else ""


def lacking(error: str, *sources: str) -> bool:
    """Whether an error says that this interpreter lacks a module that others have, and one of the sources imports."""
    if not (root := missing(error)):
        return False
    roots = {root for source in sources for i in _imports(_tokens(source)) for root, _, _ in i.parts}
    # A module of the standard library may need another one, in C, which is not there.
    return root in roots or (root.startswith("_") and not roots.isdisjoint(sys.stdlib_module_names))


def without_unused(code: str, why: str) -> str:
    """The code without imports of a lacking module (the one that `Result.why` names, or one of KNOWN) whose names it
    never uses; the same code if `why` says something else."""
    if not (root := missing(why.removeprefix("unsupported: "))):
        return code
    tokens = _tokens(code)
    imports = list(_imports(tokens))
    inside = {at for i in imports for at in range(i.first, i.end)}
    used = {
        t.string
        for at, t in enumerate(tokens)
        if t.type == tokenize.NAME and at not in inside and not (at and tokens[at - 1].string == ".")
    }
    # `globals()["np"]`, f"{np.pi}"
    used |= {
        word for t in tokens if t.type not in (tokenize.NAME, tokenize.OP) for word in re.findall(r"\w+", t.string)
    }
    lines, unwanted = code.split("\n"), KNOWN | {root, root.lstrip("_")}
    for i in reversed(imports):
        kept = [words for root, name, words in i.parts if root not in unwanted or name == "*" or name in used]
        if len(kept) == len(i.parts) or (kept and i.word == "from"):
            continue
        (row, column), (last, end) = tokens[i.first].start, tokens[i.end - 1].end
        instead = "import " + ", ".join(kept) if kept else "pass"
        lines[row - 1 : last] = [lines[row - 1][:column] + instead + lines[last - 1][end:]]
    return "\n".join(lines)


def _tokens(code: str) -> list[tokenize.TokenInfo]:
    """The tokens that count; none if the code is no Python. Without recursion, so that no depth of nesting hurts."""
    try:
        return [t for t in tokenize.generate_tokens(io.StringIO(code).readline) if t.type not in _NOTHING]
    except (tokenize.TokenError, SyntaxError, ValueError):
        return []


def _imports(tokens: list[tokenize.TokenInfo]) -> Iterator[Import]:
    """Every import statement."""
    fresh = True
    for at, token in enumerate(tokens):
        if fresh and token.type == tokenize.NAME and token.string in ("import", "from"):
            end = at
            while tokens[end].type != tokenize.NEWLINE and tokens[end].string != ";" and end + 1 < len(tokens):
                end += 1
            words = [t.string for t in tokens[at + 1 : end] if t.string not in ("(", ")")]
            whence = words[:1] if token.string == "from" else []
            if whence and "import" in words:
                words = words[words.index("import") + 1 :]
            parts = [part.split() for part in " ".join(words).split(",") if part.split()]
            named = tuple(((whence or part)[0], part[-1 if "as" in part else 0], " ".join(part)) for part in parts)
            yield Import(named, token.string, at, end)
        fresh = token.type in _LAYOUT or token.string in (";", ":")
