"""What tests of every folder share: where data and the embedded model lie, what a missing component means, and a guard.

Fixtures that a test doesn't name are limited to one, `leaves_no_processes`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from nanolens.engine.llm import LLM
    from nanolens.engine.runner.load import LoadedModel
    from serve import Server

# Read by torch and BLAS when they load, here and in child processes. Set in the environment, so that tests of parts
# that need no torch don't load it. One thread: at these sizes a second gains little, and where the machine is busy the
# two wait for each other by spinning, which has made tests fifteen times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Engines and servers announce themselves in the user's state folder: those of tests have one of their own.
_STATE = tempfile.TemporaryDirectory(prefix="nanolens-state-")
os.environ["NANOLENS_STATE_DIR"] = _STATE.name

REPO = Path(__file__).resolve().parents[1]
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

# Files whose tests start processes, servers or compilers, or build many engines: `make check` leaves them out.
SLOW_FILES = (
    "benchmarks/", "grafana/", "server/", "cases/*_over_http.py", "cases/test_w34_scrape*", "engine/test_async_engine*",
    "engine/test_exporting.py", "engine/test_smollm2.py", "engine/test_interrupts.py", "engine/test_loop_threads.py",
    "engine/test_engine_properties.py", "engine/test_pause_properties*", "kernels/test_*compile*",
    "kernels/test_triton_*", "kernels/test_prefill_attention*", "telemetry/test_exporter*", "telemetry/test_*kill*",
    "telemetry/test_state_of_pauses_and_swaps.py", "telemetry/test_spans_hold.py", "inspector/test_export_cli.py",
    "inspector/test_sources_*", "inspector/test_control.py", "inspector/test_discover.py",
    "inspector/test_terminal.py", "inspector/test_browser.py",
    "inspector/test_perfetto.py", "inspector/test_perfetto_ui.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of these files as slow."""
    tests = REPO / "tests"
    for item in items:
        path = item.path.relative_to(tests).as_posix() if item.path.is_relative_to(tests) else ""
        if any(path.startswith(name) or fnmatch(path, name) for name in SLOW_FILES):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What was printed travels from a worker as UTF-8, whatever a test has made of it."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(scope="session")
def repo() -> Path:
    """The repository's root."""
    return REPO


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the shared reference data; the test skips where it is absent, in CI too: it is never committed."""
    shared = Path(os.environ.get("NANOLENS_SHARED") or REPO.parent / "shared")
    data = shared / "data"
    if not data.is_dir():
        pytest.skip("no shared data: set NANOLENS_SHARED, or put it into ../shared beside the repository")
    return data


def missing(component: str) -> NoReturn:
    """A component of the suite is not here: skip, but fail under CI=true."""
    (pytest.fail if IN_CI else pytest.skip)(f"needs {component}, which is not here")


@pytest.fixture(scope="session")
def lacks() -> Callable[[str], NoReturn]:
    """`lacks("npm packages")` ends a test whose component turns out not to be here: a skip, a failure under CI=true."""
    return missing


@pytest.fixture(scope="session")
def require() -> Callable[[str], str]:
    """`require("node")` gives the path of a program, or skips without it (and fails under CI=true)."""

    def need(program: str) -> str:
        return shutil.which(program) or missing(program)

    return need


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """Directory of the embedded model. A test that uses it is marked `model`."""
    from nanolens.errors import NanolensError
    from nanolens.models.embedded import embedded_directory

    try:
        return embedded_directory()
    except NanolensError as error:
        missing(f"the embedded model smollm2 ({error})")


@pytest.fixture(scope="session")
def smollm2_parts(smollm2_dir: Path) -> LoadedModel:
    """The embedded model in memory, fp32, loaded once for the whole suite; engines are built on it."""
    from nanolens.engine.config import EngineConfig
    from nanolens.engine.runner.load import load_parts

    return load_parts(EngineConfig(model="smollm2", dtype="float32", device="cpu"))


@pytest.fixture
def smollm2(smollm2_parts: LoadedModel) -> Iterator[Callable[..., LLM]]:
    """`smollm2(num_blocks=64, ...)` gives an LLM on the embedded model, closed when the test ends."""
    from nanolens.engine.llm import LLM

    opened: list[LLM] = []

    def build(**options: object) -> LLM:
        opened.append(LLM("smollm2", parts=smollm2_parts, **({"num_blocks": 512, "audit": True} | options)))
        return opened[-1]

    yield build
    for llm in opened:
        llm.close()


@pytest.fixture(scope="session")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on the tiny model, shared by the suite: a test leaves it as it found it, with nothing alive in it."""
    from serve import Server

    with Server(tmp_path_factory.mktemp("tiny_server")) as server:
        yield server


def _children() -> dict[int, str]:
    """Live child processes of this one: pid -> command line. Empty where there is no /proc."""
    found = {}
    for entry in Path("/proc/self/task").glob("*/children"):
        try:
            pids = entry.read_text().split()
        except OSError:
            continue  # the thread ended meanwhile
        for pid in pids:
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it ended meanwhile
            if state != "Z" and "multiprocessing.resource_tracker" not in command:  # that one stays by design
                found[int(pid)] = command.strip()
    return found


@pytest.fixture(autouse=True)
def leaves_no_processes() -> Iterator[None]:
    """Fail a test whose child processes outlive it (those of wider fixtures are theirs to end)."""
    before = _children()
    yield
    deadline = time.monotonic() + 2.0
    while (left := {pid: command for pid, command in _children().items() if pid not in before}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.02)
    if left:
        pytest.fail(f"child processes left behind: {left}")
