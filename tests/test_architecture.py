"""The house keeps its floors: imports go down, parts stay free of torch, and what is declared exists."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]

# folder -> the folders below it. "errors" is the root's errors.py, which stands on nothing.
FLOORS: dict[str, set[str]] = {
    "errors": set(),
    "kernels": {"errors"},
    "models": {"errors", "kernels"},
    "telemetry": {"errors"},
    "engine": {"errors", "kernels", "models", "telemetry"},
    "server": {"errors", "kernels", "models", "telemetry", "engine"},
    "inspector": {"errors", "kernels", "models", "telemetry", "engine"},
    "grafana": {"errors", "telemetry"},
    "benchmarks": {"errors", "kernels", "models", "telemetry", "engine", "server", "inspector", "grafana"},
}
TORCH_FREE = [
    "nanolens",
    "nanolens.engine.async_engine",
    "nanolens.engine.block_manager",
    "nanolens.engine.scheduler",
    "nanolens.inspector.replay.report",
    "nanolens.inspector.sources.demo",
    "nanolens.inspector.sources.opening",
    "nanolens.inspector.trace_cli",
    "nanolens.telemetry.exporter_process",
    "nanolens.telemetry.journal",
    "nanolens.telemetry.reader",
]
MAX_LINES = 330
MAX_LINES_OF = {"telemetry/events.py": 500}  # the closed vocabulary belongs on one page
NOT_OURS = {"build", "dist", "node_modules", "__pycache__"}


def repository_files() -> list[Path]:
    """Every file of the repository, relative to its root, without what tools put there."""
    found = []
    for folder, folders, names in os.walk(REPO):
        folders[:] = [d for d in folders if d not in NOT_OURS and (d == ".ci" or not d.startswith("."))]
        found += [Path(folder, name).relative_to(REPO) for name in names if name != ".git"]
    return sorted(p for p in found if not any(part.endswith(".egg-info") for part in p.parts))


def checked_in_files(root: Path = REPO) -> list[Path]:
    """The files that git tracks, where `root` is a checkout that git can read; else every file of the repository."""
    if not (root / ".git").exists():
        return repository_files()
    try:
        command = ["git", "-C", str(root), "ls-files", "-z"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return repository_files()
    tracked = [Path(name) for name in listed.split("\0") if name]
    return [path for path in tracked if (root / path).is_file()]


def module_paths() -> list[Path]:
    """The package's modules, relative to the root."""
    return [p for p in repository_files() if p.suffix == ".py" and p.parts[0] in {*FLOORS, "errors.py", "__init__.py"}]


@dataclass(frozen=True)
class Import:
    """One imported name. `target` is the absolute dotted module; `name` is None for a plain `import`."""

    path: Path
    line: int
    target: str
    name: str | None
    relative: bool

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    @property
    def parts(self) -> list[str]:
        """The target below the root, the name too where it is a module of its own."""
        parts = self.target.split(".")[1:]
        if self.name is not None:
            as_path = REPO.joinpath(*parts, self.name)
            if as_path.is_dir() or as_path.with_suffix(".py").is_file():
                parts.append(self.name)
        return parts


def imports(path: Path, source: str | None = None) -> list[Import]:
    """Every import of a module, wherever it stands in the file."""
    package = ["nanolens", *path.parent.parts]
    found = []
    for node in ast.walk(ast.parse((REPO / path).read_text() if source is None else source)):
        if isinstance(node, ast.Import):
            found += [Import(path, node.lineno, alias.name, None, False) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *(node.module.split(".") if node.module else [])])
            found += [Import(path, node.lineno, target, alias.name, bool(node.level)) for alias in node.names]
    return found


def floor_violations(found: list[Import]) -> list[str]:
    """Imports that go up or sideways. The root's own names may be used by all (`__version__`)."""
    wrong = []
    for item in found:
        if item.target.split(".")[0] != "nanolens" or not item.parts or item.path == Path("__init__.py"):
            continue
        here, there = item.path.parts[0].removesuffix(".py"), item.parts[0]
        if there != here and there not in FLOORS[here]:
            wrong.append(f"{item.where}: {here} imports {there}")
    return wrong


def absolute_violations(found: list[Import]) -> list[str]:
    """Imports of our own modules that only work with the root on sys.path, or that name the package from inside."""
    ours = {*FLOORS, "nanolens"}
    return [f"{i.where}: import of {i.target}" for i in found if not i.relative and i.target.split(".")[0] in ours]


def private_violations(found: list[Import]) -> list[str]:
    """Private names, or names of private modules, taken from another folder."""
    wrong = []
    for item in found:
        folder = REPO.joinpath(*item.target.split(".")[1:])
        if not item.relative or (folder if folder.is_dir() else folder.parent) == REPO / item.path.parent:
            continue
        names = [*item.target.split("."), item.name or ""]
        if any(name.startswith("_") and not name.endswith("__") for name in names):
            wrong.append(f"{item.where}: {item.name} of {item.target}")
    return wrong


def all_imports() -> list[Import]:
    return [item for path in module_paths() for item in imports(path)]


def test_imports_go_down_the_floors() -> None:
    assert floor_violations(all_imports()) == []


def test_modules_import_each_other_relatively() -> None:
    assert absolute_violations(all_imports()) == []


def test_no_private_name_crosses_a_folder() -> None:
    assert private_violations(all_imports()) == []


@pytest.mark.parametrize(
    ("check", "path", "source"),
    [
        (floor_violations, "kernels/a.py", "from ..models import registry"),
        (floor_violations, "kernels/a.py", "from .. import models"),
        (floor_violations, "telemetry/a.py", "def f():\n    from ..engine.sequence import Sequence"),
        (floor_violations, "engine/runner/a.py", "from ...server import app"),
        (floor_violations, "server/a.py", "from ..inspector import tui"),
        (floor_violations, "errors.py", "from .telemetry import clock"),
        (absolute_violations, "engine/a.py", "import kernels.attention"),
        (absolute_violations, "engine/a.py", "from nanolens.telemetry import events"),
        (private_violations, "engine/a.py", "from ..telemetry.journal import _encode"),
        (private_violations, "engine/a.py", "from .runner import _x"),
        (private_violations, "engine/runner/a.py", "from ..sequence import _W"),
    ],
)
def test_the_checks_find_what_they_look_for(check, path: str, source: str) -> None:
    assert len(check(imports(Path(path), source))) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("models/a.py", "from ..kernels.norm import rms_norm"),
        ("engine/a.py", "from .. import __version__\nfrom .block_manager import _x\nimport torch"),
        ("engine/runner/a.py", "from ...models.batch import ForwardBatch\nfrom ..plan import StepPlan"),
        ("telemetry/a.py", "from ..errors import JournalError"),
    ],
)
def test_the_checks_let_the_rest_pass(path: str, source: str) -> None:
    found = imports(Path(path), source)
    assert floor_violations(found) + absolute_violations(found) + private_violations(found) == []


def test_engine_and_telemetry_never_name_torch() -> None:
    free = [p for p in module_paths() if p.parts[0] == "telemetry" or (p.parts[0] == "engine" and len(p.parts) == 2)]
    assert free
    assert [i.where for path in free for i in imports(path) if i.target.split(".")[0] == "torch"] == []


@pytest.mark.parametrize("module", TORCH_FREE)
def test_importing_it_loads_no_torch(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; sys.exit('torch was loaded' if 'torch' in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_public_names_load_from_the_root() -> None:
    import nanolens

    for name in nanolens.__all__:
        assert getattr(nanolens, name) is not None
        assert name in dir(nanolens)


def test_an_unknown_public_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    import nanolens

    with pytest.raises(AttributeError, match=r"'Lens'.*LLM"):
        nanolens.Lens  # noqa: B018


def test_every_module_says_what_it_is_for() -> None:
    assert [str(p) for p in module_paths() if not ast.get_docstring(ast.parse((REPO / p).read_text()))] == []


def test_files_stay_short() -> None:
    lines = {str(p): len((REPO / p).read_text().splitlines()) for p in module_paths()}
    assert {p: count for p, count in lines.items() if count > MAX_LINES_OF.get(p, MAX_LINES)} == {}


def test_every_package_is_declared() -> None:
    setuptools = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]
    on_disk = {".".join(["nanolens", *p.parent.parts]) for p in module_paths() if p.name != "errors.py"}
    assert sorted(setuptools["packages"]) == sorted(on_disk)


def test_every_data_file_of_a_package_is_declared() -> None:
    setuptools = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]
    undeclared = []
    for path in repository_files():
        package = ".".join(["nanolens", *path.parent.parts])
        if package != "nanolens" and package in setuptools["packages"] and path.suffix not in (".py", ".md"):
            patterns = setuptools["package-data"].get(package, [])
            undeclared += [] if any(path.match(pattern) for pattern in patterns) else [str(path)]
    assert undeclared == []


def test_every_command_exists() -> None:
    scripts = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["scripts"]
    for target in scripts.values():
        module, function = target.split(":")
        path = REPO.joinpath(*module.split(".")[1:]).with_suffix(".py")
        assert path.is_file(), target
        assert function in {n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)}, target


def test_tests_that_need_the_model_are_marked() -> None:
    tests = [p for p in repository_files() if p.parts[0] == "tests" and p.name.startswith("test_")]
    others = [p for p in tests if p.name != Path(__file__).name]
    texts = {str(p): (REPO / p).read_text() for p in others if p.suffix == ".py"}
    assert [name for name, text in texts.items() if "smollm2_dir" in text and "mark.model" not in text] == []


def test_test_files_have_unique_names() -> None:
    names = [p.name for p in repository_files() if p.parts[0] == "tests" and p.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


def test_an_untracked_file_is_nobodys_business(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for name in ("tracked", "untracked", "deleted"):
        (tmp_path / name).write_text("")
    for arguments in (["init", "-q"], ["add", "tracked", "deleted"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, timeout=60)
    (tmp_path / "deleted").unlink()
    assert checked_in_files(tmp_path) == [Path("tracked")]


def test_nothing_names_one_machine_or_a_package_registry() -> None:
    machine = r"(?<![\w.])/(?:" + "|".join(("work", "root", "opt/" + "wheels", "opt/" + "pypi")) + ")/"
    hosts = "|".join(re.escape(".".join(host)) for host in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org")))
    pattern = re.compile(f"{machine}|{hosts}|{re.escape('.'.join(('download', 'pytorch', 'org')))}")
    found = []
    for path in checked_in_files():
        try:
            text = (REPO / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # binary
        found += [f"{path}:{n}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
    assert found == []
