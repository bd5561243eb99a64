"""One setting changes in device.toml, however its owner spells it; all else stays, and nothing is ever broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_sdk.config import load_config
from device_sdk.program.kept_settings import keep_setting
from device_sdk.runtimes import EngineName
from mien.errors import ConfigError

SPELLINGS = [
    "",
    "inference.max_ms = 100\n",
    "threads = 2\n\ninference.max_ms = 100\n[verification]\nmax_fmr = 0.01\n",
    'inference.tier = "float32" # by default\n',
    "inference . tier = 'float32'\n",
    "inference = { max_ms = 100 }\n",
    "inference = {}\n",
    'inference = { tier = "float32", max_ms = 100 }\n[verification]\nmax_fmr = 0.01\n',
    "'inference' = { max_ms = 100 }\n",
    '[inference]\n  tier = "float32"\n',
    '[ inference ]\nmax_ms = 100\n[verification] # "tier" = "x"\nmax_fmr = 0.01',
    '["inference"]\n"tier" = "float32"\n',
    "['inference']\nmax_ms = 100\n",
    "  [inference]  # forms\n  max_ms = 5\n",
    "[inference]\r\nmax_ms = 5\r\n[verification]\r\nmax_fmr = 0.01\r\n",
    'inference = { "max_ms" = 100, "tier"="float32" }',
    'runtime = "torch"\n[inference]\nmax_ms = 3',
    '"runtime" = "torch" # the old one\nthreads = 2',
    "  runtime = 'torch'\n",
]


@pytest.mark.parametrize("before", SPELLINGS)
def test_one_setting_changes_and_all_others_stay(tmp_path: Path, before: str) -> None:
    path = tmp_path / "device.toml"
    if before:
        path.write_bytes(before.encode())
    expected = load_config(path).values()
    choices: list[tuple[str, EngineName]] = [("int8", "onnxruntime"), ("float32", "executorch"), ("int8", "torch")]
    for tier, engine in choices:
        keep_setting(path, "inference.tier", tier)
        keep_setting(path, "runtime", engine)
        expected |= {"inference.tier": tier, "runtime": engine}
        assert load_config(path).values() == expected
        keep_setting(path, "inference.tier", tier)
        for comment in ("# by default", "# forms", '# "tier" = "x"', "# the old one"):
            assert (comment in path.read_text()) == (comment in before)


def test_words_that_only_look_like_the_setting_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_text("[participation]\nperson = '''\n[inference]\ntier = \"float32\"\nruntime = \"torch\"'''\n")
    person = load_config(path).config.participation.person
    keep_setting(path, "inference.tier", "int8")
    keep_setting(path, "runtime", "onnxruntime")
    values = load_config(path).config
    assert (values.participation.person, values.inference.tier, values.runtime) == (person, "int8", "onnxruntime")


def test_what_cannot_be_changed_stays_and_the_owner_is_told_the_line(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    before = '[inference]\ntier = """float32"""\n'
    path.write_text(before)
    with pytest.raises(ConfigError, match=r'write inference\.tier = "int8" in it by hand'):
        keep_setting(path, "inference.tier", "int8")
    assert path.read_text() == before
    keep_setting(path, "inference.tier", "float32")  # which it says already
    assert path.read_text() == before
