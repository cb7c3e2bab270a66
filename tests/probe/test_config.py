"""The msprobe_config section: what is accepted, from where, and how the rest is refused."""

import argparse
import dataclasses
import os
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mindrlhf_msprobe import ConfigError, Probe, ProbeConfig, load_config
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.config import NO_END

#: Every key, in the order of the documents: its default, and another value.
KEYS: dict[str, tuple[Any, Any]] = {
    "msprobe": (False, True),
    "dump_path": ("./msprobe_dump", "/somewhere/run 1"),
    "key_data_dump": (False, True),
    "configurations_dump": (False, True),
    "actor_infer_dump": (False, True),
    "actor_train_dump": (False, True),
    "reference_dump": (False, True),
    "critic_train_dump": (False, True),
    "token_range_start": (0, 1),
    "token_range_end": (0, 7),
    "step_start": (0, 2),
    "step_end": (0, 3),
    # extensions
    "task": ("statistics", "tensor"),
    "level": ("L0", "mix"),
    "overflow_nums": (1, -1),
    "grad_level": ("L2", "L1"),
    "param_list": ([], ["model.norm.weight"]),
    "bounds": ([-1.0, 0.0, 1.0], [-0.5, 3.0]),
    "fingerprint": (True, False),
    "md5": (False, True),
    "parameters": (True, False),
    "optimizer_state": (False, True),
    "ranks": ([], [0, 3]),
    "include": ([], ["layers\\.1"]),
    "exclude": ([], ["norm$"]),
    "directions": (["forward", "backward"], ["forward"]),
    "parts": (["input", "output"], ["output"]),
    "entries": ([], ["fc1.Dense.forward"]),
    "scope": ([], ["Cell.a.Dense.forward.0", "Cell.b.Dense.backward.0"]),
    "steps": ([], [2]),
    "step_interval": (1, 1),
    "existing": ("refuse", "overwrite"),
    "strict": (False, True),
    "initial_step": (0, 4),
    "buffer_mb": (512, 64),
    "keep_mb": (0, 900),
    "columns": (True, False),
    "numbered_key_data": (False, True),
    "on_finding": ("", "my_package.alarms:seen"),
    "rules": ("", "rules.yaml"),
    "tensorboard": ("", "events"),
    "pert_mode": ("improve_precision", "bit_noise"),
    "handler_type": ("check", "check"),
    "fuzz_stage": ("forward", "backward"),
    "fuzz_runs": (3, 2),
    "fuzz_thresholds": ({}, {"float16": 0.01}),
    "fuzz_ratio": (100.0, 50.0),
    "precision": ("float64", "float32"),
    "budget": (0.0, 2.5),
    "compute_dtype": ("", "bfloat16"),
    "phases": ({}, {"reward_compute": "reward"}),
    "rollout_from": ("", "run_a"),
    "rollout_order": ("same", "shuffle"),
    "rollout_seed": (0, 7),
    "rollout_steps": ([], [2, 5]),
    "replace": ({}, {"advantages": "run_a"}),
    "graft": (
        [],
        [
            {
                "from": "run_a",
                "entries": ["Cell.fc1.Dense"],
                "what": ["output", "gradient"],
                "steps": [2],
                "phases": ["actor_update"],
                "ranks": [0],
            }
        ],
    ),
    "compare_to": ("", "run_a"),
    "on_divergence": ("warn", "stop"),
}


@dataclasses.dataclass
class Section:
    """A trainer's own dataclass for the section."""

    msprobe: bool = True
    dump_path: str = "out"
    step_end: int = 3


class Attributes:
    """A section written as a class."""

    msprobe = True
    dump_path = "out"
    step_end = 3

    def helper(self) -> None:
        """Do what configuration classes also hold."""


class Slotted:
    """An object without a __dict__."""

    __slots__ = ("dump_path", "msprobe", "step_end")

    def __init__(self) -> None:
        self.msprobe, self.dump_path, self.step_end = True, "out", 3


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_are_the_documented_ones() -> None:
    """An empty section means the twelve documented defaults and those of the extensions."""
    assert load_config({}).to_json() == {key: default for key, (default, _) in KEYS.items()}


def test_every_key_is_taken() -> None:
    """Every key that is given arrives as it was given."""
    every = {key: value for key, (_, value) in KEYS.items()}
    assert load_config(every).to_json() == every


def test_reads_the_section_of_a_yaml_file(tmp_path):
    """A YAML path gives its msprobe_config section; what stands beside it is the trainer's."""
    file = write(tmp_path / "ppo.yaml", "model: {layers: 2}\nmsprobe_config:\n  msprobe: true\n")
    assert load_config(file).msprobe
    assert load_config(str(file)) == load_config(file)


def test_reads_a_yaml_file_that_is_the_section(tmp_path):
    """A YAML file may hold the section alone."""
    file = write(tmp_path / "probe.yaml", "msprobe: true\nstep_end: 3\n")
    assert load_config(file).step_end == 3


def test_reads_yaml_with_a_byte_order_mark_and_chinese(tmp_path):
    """UTF-8 with a byte order mark and Chinese values are read."""
    file = tmp_path / "配置.yaml"
    file.write_bytes("\ufeffmsprobe_config:\n  dump_path: 数据/运行\n".encode())
    assert load_config(file).dump_path == "数据/运行"


@pytest.mark.parametrize(
    "source",
    [
        {"msprobe": True, "dump_path": "out", "step_end": 3},
        OrderedDict(msprobe=True, dump_path="out", step_end=3),
        Section(),
        Attributes,
        Attributes(),
        Slotted(),
        SimpleNamespace(msprobe=True, dump_path="out", step_end=3),
        argparse.Namespace(msprobe=True, dump_path=Path("out"), step_end=3),
        ProbeConfig(msprobe=True, dump_path="out", step_end=3),
    ],
    ids=lambda source: getattr(type(source), "__name__", str(source)),
)
@pytest.mark.parametrize("holder", ["itself", "mapping", "namespace", "dataclass", "class"])
def test_every_kind_of_object_carries_the_section(source, holder):
    """A mapping, dataclass, class or attribute object is the section, or holds msprobe_config."""
    held = {
        "itself": lambda: source,
        "mapping": lambda: {"msprobe_config": source, "other": 1},
        "namespace": lambda: SimpleNamespace(msprobe_config=source, other=1),
        "dataclass": lambda: dataclasses.make_dataclass("Config", ["msprobe_config", "other"])(
            source, 1
        ),
        "class": lambda: type("Config", (), {"msprobe_config": source, "other": 1}),
    }[holder]()
    config = load_config(held)
    assert (config.msprobe, config.dump_path, config.step_end) == (True, "out", 3)


@pytest.mark.parametrize("empty", [None, {}, SimpleNamespace()])
def test_an_empty_section_is_switched_off(empty):
    """A section without settings means the defaults: the probe is off."""
    assert load_config({"msprobe_config": empty}) == ProbeConfig()


def test_a_configuration_is_a_frozen_value() -> None:
    """What was checked cannot be changed afterwards."""
    config = load_config({"msprobe": True})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.msprobe = False  # type: ignore[misc]


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("mspobe", "msprobe"),
        ("dumppath", "dump_path"),
        ("key_data", "key_data_dump"),
        ("actor_infer_dmp", "actor_infer_dump"),
        ("token_range_strat", "token_range_start"),
        ("step_ends", "step_end"),
        ("finger_print", "fingerprint"),
        ("Strict", "strict"),
    ],
)
@pytest.mark.parametrize("kind", ["mapping", "namespace", "class", "inherited", "yaml"])
def test_an_unknown_key_names_the_nearest(typo, meant, kind, tmp_path):
    """A misspelt key is refused with its name, its value and the key that was meant."""
    values = {"msprobe": True, typo: 12}
    source: Any = {
        "mapping": lambda: values,
        "namespace": lambda: SimpleNamespace(**values),
        "class": lambda: type("Section", (), values),
        "inherited": lambda: type("Section", (type("Base", (), values),), {})(),
        "yaml": lambda: write(
            tmp_path / "c.yaml", f"msprobe_config:\n  msprobe: true\n  {typo}: 12\n"
        ),
    }[kind]()
    with pytest.raises(ConfigError) as refusal:
        load_config(source)
    assert repr(typo) in str(refusal.value)
    assert "12" in str(refusal.value)
    assert f"Did you mean {meant!r}?" in str(refusal.value)


def test_all_unknown_keys_are_named() -> None:
    """A file with several mistakes is corrected in one go."""
    values = {"msprobe": True, "dumppath": "x", "step_end": 1, "levels": "L1", 7: None}
    with pytest.raises(ConfigError) as refusal:
        load_config(values)
    said = str(refusal.value)
    assert said.startswith("unknown keys in msprobe_config: 'dumppath' (value 'x'). Did you mean")
    assert "'levels' (value 'L1')" in said
    assert "7 (value None)" in said
    assert said.count("Valid keys") == 1


def test_unknown_keys_can_be_left_out() -> None:
    """As the integrations of trainers do, which no training is stopped for; wrong values do."""
    said: list[Message] = []
    values = {"msprobe": True, "key_data_dump": True, "dumppath": "x"}
    assert load_config(values, ignore=said.append) == load_config(
        {"msprobe": True, "key_data_dump": True}
    )
    assert len(said) == 1
    assert "'dumppath' (value 'x')" in str(said[0])
    with pytest.raises(ConfigError, match="dumppath"):
        load_config({**values, "strict": True}, ignore=said.append)
    with pytest.raises(ConfigError, match="step_end"):
        load_config({**values, "step_end": "3"}, ignore=said.append)


def test_a_key_that_is_no_text_is_refused() -> None:
    """A key of another type is an unknown key, not a crash."""
    with pytest.raises(ConfigError, match="unknown key 3"):
        load_config({3: True})


#: What is expected → key → values that are refused.
WRONG: dict[str, dict[str, list[Any]]] = {
    "true or false": {
        "msprobe": ["true", 1, None],
        "key_data_dump": [[]],
        "strict": [0],
        "optimizer_state": ["adam"],
    },
    "the path of a directory": {
        "dump_path": [5, "", "  ", "a\0b", None],
        "tensorboard": [5, "a\0b"],
    },
    "a whole number, 0 or larger": {
        "step_start": [-1],
        "step_end": [1.0, "3", True],
        "token_range_end": [None],
        "initial_step": [-3],
        "keep_mb": [-1, "4 GB", 1.5],
        "steps": [["1"]],
        "ranks": [[0, -1], [True]],
    },
    "a whole number, 1 or larger": {"buffer_mb": [0], "step_interval": [0, [2]]},
    "one of statistics, tensor, overflow_check, grad_probe": {"task": ["tensors", ["tensor"]]},
    "one of L0, L1, L2": {"grad_level": ["L3"]},
    "one of L0, L1, mix": {"level": ["L2", 1]},
    "a list of texts": {"param_list": ["weight"], "entries": ["Dense"]},
    "numbers in ascending order": {
        "bounds": [[], 0, [0, 0], [1, -1], [0, True], [float("nan")], [2**65]]
    },
    "a whole number, 1 or larger, or -1 for all": {"overflow_nums": [0, -2, 1.0, True]},
    "one of refuse, resume, overwrite": {"existing": ["append"]},
    "a list of steps": {"steps": [0]},
    "one of input, output": {"parts": [["inputs"]]},
    "a text that occurs in the names of entries": {"entries": [[""]]},
    "the names of two entries": {"scope": [["Cell.a.Dense.forward.0"]]},
    "Cell.layers.0.Dense.forward.0": {"scope": [["Cell.a.Dense.forward.0", "Dense"]]},
    "a list of ranks": {"ranks": [0, "01"]},
    "a list of regular expressions": {"include": ["layers"]},
    "a regular expression": {"include": [[1]], "exclude": [["("]]},
    "a list of forward, backward": {"directions": ["forward"]},
    "one of forward, backward": {"directions": [["sideways"]]},
    "a list with at least one of forward, backward": {"directions": [[]]},
    "a list with at least one of input, output": {"parts": [[]]},
    "warn, stop, or module:function": {"on_finding": ["halt", True, "my_module:", "my module:f"]},
    "the path of a rule file": {"rules": [5]},
    "a mapping of phase name to role": {"phases": [["reward"]]},
    "a name that is not already taken": {
        "phases": [
            {"actor_update": "actor"},
            {"data": "actor"},
            {"step0": "actor"},
            {"rank12": "actor"},
        ]
    },
    "phase names of letters, digits and underscores": {
        "phases": [{"a/b": "actor"}, {"..": "actor"}, {3: "actor"}]
    },
    "the name of a role": {"phases": [{"reward_compute": None}, {"reward_compute": "optimizers"}]},
}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [(k, v, e) for e, wrong in WRONG.items() for k, values in wrong.items() for v in values],
)
def test_a_wrong_value_is_refused(key, value, expected):
    """A value of the wrong type or out of range names key, value and what was expected."""
    with pytest.raises(ConfigError) as refusal:
        load_config({key: value})
    message = str(refusal.value)
    assert f"msprobe_config.{key}" in message
    assert expected in message
    wrong = value[-1] if isinstance(value, list) and value else value
    if not isinstance(wrong, (dict, list)):
        assert repr(wrong) in message


@pytest.mark.parametrize("name", ["step", "token_range"])
def test_an_inverted_range_is_refused(name):
    """An end before its start names both keys and both values."""
    with pytest.raises(ConfigError) as refusal:
        load_config({f"{name}_start": 5, f"{name}_end": 2})
    for part in (f"{name}_end is 2", f"{name}_start 5", "inclusive", f"{name}_end: 5"):
        assert part in str(refusal.value)


def test_steps_that_all_lie_outside_the_window_are_refused() -> None:
    """Nothing would be recorded; the message names the key that is missing."""
    with pytest.raises(ConfigError, match=r"steps is \[5, 7\].*step_end 0.*Set step_end: 7"):
        load_config({"steps": [5, 7]})
    assert load_config({"steps": [5, 7], "step_end": 5}).recorded_steps == 1


def test_every_nth_step_is_counted_from_step_start() -> None:
    """However the run begins; the counts are those of the steps that are recorded."""
    config = load_config({"step_start": 2, "step_end": 12, "step_interval": 5})
    assert [step for step in range(20) if config.records_step(step)] == [2, 7, 12]
    for step in range(20):
        left = [n for n in range(step, 20) if config.records_step(n)]
        assert config.steps_from(step) == len(left)
    assert config.recorded_steps == 3
    assert load_config({"step_end": NO_END, "step_interval": 5}).recorded_steps is None
    with pytest.raises(ConfigError, match="steps and step_interval 2 both choose steps"):
        load_config({"steps": [3], "step_end": 9, "step_interval": 2})


def test_a_start_alone_is_refused_because_the_end_is_still_zero() -> None:
    """step_start: 2 without step_end would record nothing, so it is refused with the remedy."""
    with pytest.raises(ConfigError, match="step_start: 2, step_end: 2"):
        load_config({"step_start": 2})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "found empty"),
        (b"- a\n- b\n", "found a list"),
        (b"just words", "found a str"),
        (b"a: [", "not valid YAML"),
        (b"a: b: c", "not valid YAML"),
        (b"a: 2024-13-45", "not valid YAML"),
        (b"\xff\xfe\xff", "cannot be read as UTF-8 text"),
        (b"[" * 1200, "not valid YAML"),
        (b"{[1]: 2}", "not valid YAML"),
        (b"!!python/object/apply:os.getcwd []", "not valid YAML"),
        (b"model: {layers: 2}", "there is no section 'msprobe_config'"),
        (b"model: {layers: 2}\ntask: rl\nparameters: 7", "there is no section 'msprobe_config'"),
        (b"msprobe_config: true", "must be a mapping"),
        (b"msprobe_config: [msprobe]", "must be a mapping"),
        (b"msprobe_config: {msprobe: 'yes'}", "expected true or false"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, content, expected):
    """A file that is not such a YAML file is refused with its name and what was expected."""
    file = tmp_path / "broken.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        load_config(file)
    assert str(file) in str(refusal.value)
    assert expected in str(refusal.value)


@pytest.mark.parametrize("name", ["missing.yaml", "", ".", "a\0b", "x" * 5000])
def test_a_path_without_a_readable_file_is_refused(tmp_path, name):
    """A path that is missing, a directory or no path at all is refused, not a crash."""
    with pytest.raises(ConfigError):
        load_config(f"{tmp_path}/{name}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_refused(tmp_path):
    """A file this process may not read is refused with the reason."""
    file = write(tmp_path / "secret.yaml", "msprobe: true")
    file.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(file)


@pytest.mark.parametrize("source", [5, 1.5, True, b"msprobe", ["msprobe"], ("a",), {1}, print])
def test_a_source_that_holds_no_settings_is_refused(source):
    """A source that cannot hold settings is refused with what it is."""
    with pytest.raises(ConfigError, match="must be a mapping or an object"):
        load_config(source)


def test_a_mapping_without_the_section_is_refused() -> None:
    """A whole configuration without the section does not silently mean switched off."""
    with pytest.raises(ConfigError, match="unknown key 'model'"):
        load_config({"model": {"layers": 2}})


def test_wrong_configuration_stops_the_probe_before_it_writes(tmp_path):
    """A probe that is refused leaves no directory behind."""
    target = tmp_path / "run"
    with pytest.raises(ConfigError):
        Probe.from_config({"msprobe": True, "dump_path": str(target), "task": "all"})
    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("msprobe_config:\n  step_end: 1\n  msprobe: true\n  step_end: 9\n", "step_end", 4),
        ("msprobe_config: {msprobe: true, msprobe: false}\n", "msprobe", 1),
        ("msprobe: true\nstep_end: 1\nmsprobe: false\n", "msprobe", 3),
        ("msprobe_config: {}\na: 1\nmsprobe_config: {msprobe: true}\n", "msprobe_config", 3),
    ],
)
def test_a_key_that_stands_twice_is_refused(tmp_path, text, key, line):
    """YAML would take one of them and lose the other; the trainer's own sections are its own."""
    path = tmp_path / "ppo.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"line {line}: '{key}' is repeated"):
        load_config(path)
    path.write_text("train: {lr: 1, lr: 2}\nmsprobe_config: {msprobe: true}\ntrain: {}\n")
    assert load_config(path).msprobe


def test_windows_are_inclusive() -> None:
    """A step and a token range include both their ends."""
    config = load_config(
        {"step_start": 2, "step_end": 3, "token_range_start": 1, "token_range_end": 1}
    )
    assert [s for s in range(6) if config.records_step(s)] == [2, 3]
    assert [t for t in range(6) if config.records_token(t)] == [1]


def test_each_switch_turns_on_its_phases_only() -> None:
    """Every switch turns on exactly the phases the documentation lists."""
    expected = {
        "actor_infer_dump": {"actor_generate_sequences"},
        "actor_train_dump": {"actor_compute_log_prob", "actor_update"},
        "reference_dump": {"reference_compute_log_prob"},
        "critic_train_dump": {"critic_compute_values", "critic_update"},
    }
    for switch, phases in expected.items():
        for on in (True, False):
            config = load_config({"msprobe": on, switch: True})
            found = {n for n, p in config.phase_table().items() if config.records_phase(p)}
            assert found == (phases if on else set())


def test_own_phases_join_the_table() -> None:
    """A trainer's own phase is known, has its role and is on because it was declared."""
    config = load_config({"msprobe": True, "phases": {"reward_compute": "reward"}})
    phase = config.phase_table()["reward_compute"]
    assert (phase.role, config.records_phase(phase)) == ("reward", True)


def test_include_and_exclude_search_in_cell_names() -> None:
    """A cell is recorded if any include pattern is found in its name and no exclude pattern is."""
    config = load_config({"include": ["layers\\.1\\.", "^root$"], "exclude": ["norm$"]})
    names = ["root", "model.layers.1.attention", "model.layers.1.norm", "model.layers.11", "head"]
    assert [n for n in names if config.records_cell(n)] == ["root", "model.layers.1.attention"]
