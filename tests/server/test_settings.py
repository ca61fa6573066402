"""Settings from flags, variables and files: what goes before what, what is refused, and that keys stay secret."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from nanolens.engine.config import EngineConfig
from nanolens.errors import InvalidConfig
from nanolens.server.options import parse_size
from nanolens.server.settings import OPTIONS, ServeSettings, load_settings

KEY = "sk-0123456789"


def load(flags: dict[str, Any] | None = None, config: str | None = None, **environment: str) -> ServeSettings:
    return load_settings(flags or {}, config, environment)


def written(tmp_path: Path, text: str, name: str = "serve.toml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_every_setting_of_the_engine_and_of_the_server_is_an_option_with_a_help_text() -> None:
    fields = {field.name for kind in (EngineConfig, ServeSettings) for field in dataclasses.fields(kind)} - {"engine"}
    assert OPTIONS.keys() == fields
    assert not [option.name for option in OPTIONS.values() if not option.help]


def test_flags_go_before_variables_and_these_before_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "port = 1\nmax-queue = 1\nnum_blocks = 1\nblock-size = 8\n")
    found = load({"port": 3}, file, NANOLENS_PORT="2", NANOLENS_MAX_QUEUE="2", NANOLENS_NUM_BLOCKS="2")
    assert (found.port, found.max_queue, found.engine.num_blocks, found.engine.block_size) == (3, 2, 2, 8)


def test_a_file_is_json_where_its_name_says_so(tmp_path: Path) -> None:
    text = json.dumps({"model": "dummy:llama-tiny", "served-model-name": ["a", "b"], "max_queue": None, "audit": True})
    found = load({}, written(tmp_path, text, "serve.json"))
    assert (found.model_names, found.max_queue, found.engine.audit) == (("a", "b"), None, True)
    assert found.engine.model == "dummy:llama-tiny"


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    assert load(NANOLENS_CONFIG=written(tmp_path, "port = 7")).port == 7


def test_an_empty_variable_sets_nothing() -> None:
    assert load(NANOLENS_PORT="", NANOLENS_API_KEY="").port == ServeSettings.port


def test_a_size_may_have_a_unit() -> None:
    found = load({}, None, NANOLENS_JOURNAL_CAP="64MiB", NANOLENS_MAX_BODY_BYTES="2k")
    assert (found.engine.journal_cap, found.max_body_bytes) == (64 << 20, 2 << 10)
    assert parse_size("journal_cap", "123") == 123


@pytest.mark.parametrize("text", ["", "1.5G", "64 parsecs", "-1", "G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="journal_cap="):
        parse_size("journal_cap", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_blokcs = 1", "did you mean num_blocks"),
        ("zzz = 1", "--help"),
        ("port = true", "must be of the type int"),
        ("port = 1.5", "must be a whole number"),
        ("audit = 1", "must be of the type bool"),
        ("port = [1]", "must be of the type int"),
        ("served-model-name = 3", "must be a text or a list of texts"),
        ("port = ", "is no TOML"),
        ("policy = 'lifo'", "must be one of fcfs, priority, sjf"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(InvalidConfig) as caught:
        load({}, file)
    assert message in str(caught.value) and file in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidConfig, match=r"nowhere\.toml: can't be read"):
        load({}, "nowhere.toml")


def test_what_is_wrong_in_a_variable_is_named_with_the_variable() -> None:
    with pytest.raises(InvalidConfig, match="NANOLENS_PORT: port='http': must be a whole number"):
        load(NANOLENS_PORT="http")


@pytest.mark.parametrize(
    ("name", "value"),
    [("port", 65536), ("max_queue", -1), ("stall_seconds", math.nan), ("max_prompts", 0), ("max_timeout_s", 0.0)],
)
def test_a_number_out_of_range_is_refused_with_its_range(name: str, value: float) -> None:
    with pytest.raises(InvalidConfig, match=f"{name}=.*must be at least"):
        load({name: value})


def test_keys_come_from_every_source_and_a_file_and_are_not_shown(tmp_path: Path) -> None:
    file = written(tmp_path, f"{KEY}-a\n\n  {KEY}-b  \n", "keys")
    found = load({"api_key_file": file}, None, NANOLENS_API_KEY=f"{KEY}-c,{KEY}-d")
    assert set(found.keys()) == {f"{KEY}-{each}" for each in "abcd"}
    assert KEY not in repr(found)


@pytest.mark.parametrize("key", ["short", "with space inside", "tab\tinside--", "schlüssel-lang"])
def test_a_key_that_can_be_guessed_or_not_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InvalidConfig, match="at least 8 characters") as caught:
        load({"api_key": (key,)})
    assert key not in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "short\n"])
def test_a_file_of_keys_without_one_that_works_is_refused(tmp_path: Path, text: str | None) -> None:
    file = str(tmp_path / "absent") if text is None else written(tmp_path, text, "keys")
    with pytest.raises(InvalidConfig, match="api_key_file"):
        load({"api_key_file": file}).keys()


def test_metrics_take_an_exporter_unless_turned_off_or_nothing_is_recorded() -> None:
    assert load().engine.metrics_port == 0
    assert load({"metrics_port": 9400}).engine.metrics_port == 9400
    assert load({"metrics": False}).engine.metrics_port is None
    assert load({"recording": False}).engine.metrics_port is None


@pytest.mark.parametrize(
    ("host", "is_open"),
    [("127.0.0.1", False), ("localhost", False), ("::1", False), ("0.0.0.0", True), ("::", True), ("box", True)],
)
def test_whether_other_machines_can_reach_it_follows_from_the_address(host: str, is_open: bool) -> None:
    assert ServeSettings(host=host).is_open_to_others is is_open


@pytest.mark.parametrize(
    ("name", "hint"), [("NANOLENS_NUM_BLOKCS", "did you mean NANOLENS_NUM_BLOCKS"), ("NANOLENS_QQQQ", "--help")]
)
def test_a_variable_that_no_setting_has_is_refused(name: str, hint: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name}: there is no such setting") as caught:
        load(**{name: "1"})
    assert hint in str(caught.value)


def test_variables_of_other_parts_and_of_others_are_left_alone() -> None:
    others = {"NANOLENS_SHARED": "x", "NANOLENS_HYPOTHESIS": "ci", "NANOLENS_TEST_SERVER": "y", "NANO": "z"}
    assert load(**others) == load()


def test_a_swap_file_in_a_directory_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    wanted = {"swap_path": str(tmp_path / "absent" / "swap"), "disk_blocks": 4}
    with pytest.raises(InvalidConfig, match=r"swap_path=.*absent/swap.*there is no directory"):
        load(wanted)
    assert load(wanted | {"swap_path": str(tmp_path / "swap")}).engine.disk_blocks == 4


def test_debug_that_needs_a_key_needs_that_there_is_one() -> None:
    with pytest.raises(InvalidConfig, match="debug_needs_key"):
        load({"debug_needs_key": True}).keys()
    assert load({"debug_needs_key": True, "api_key": (KEY,)}).keys() == (KEY,)
