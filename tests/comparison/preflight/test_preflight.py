"""The preflight: settings, versions and weights that differ, and what nobody knows."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import MSPROBE_DATA, Recording, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.comparison.preflight.preflight import MAX_DIFFERENCES, preflight
from mindrlhf_msprobe.comparison.preflight.preflight import remark as messages_of
from mindrlhf_msprobe.comparison.preflight.values import Notes
from mindrlhf_msprobe.findings import Difference, Preflight, Weights
from mindrlhf_msprobe.report.messages import paragraph, text_of
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.manifest.notes import FirstEntry
from mindrlhf_msprobe.storage.manifest.run_file import RunFile
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.writing.writer import RunWriter

SETTINGS: dict[str, Any] = {
    "device": {"machine": "aarch64", "device_target": "Ascend", "mode": "PyNative"},
    "seeds": {"mindspore": 1234, "PYTHONHASHSEED": None, "numpy_state": "x", "random_state": "y"},
    "determinism": {"deterministic": "ON", "HCCL_DETERMINISTIC": "true"},
    "environment": {"HCCL_ALGO": "ring", "MS_SCHED_PORT": "8118"},
}
WEIGHTS = {
    "actor": {f"layers.{i}.weight": f"xxh3_128:{i}" for i in range(4)},
    "reference": {"head.weight": "xxh3_128:9"},
}
CONFIGURATIONS = {"actor": {"layers": [2, 4], "lr": 1.0, "nan": "NaN", "name": "llama"}}


def remark(found, role):
    """Return what is said of a preflight, in English."""
    return paragraph(messages_of(found, role), "en")


def record(
    root: Path,
    *changes: tuple[str, Any],
    ranks: tuple[int, ...] = (0,),
    entered: bool = True,
    weights: dict[str, Any] | None = None,
    configurations: dict[str, Any] | None = None,
    only_rank: int | None = None,
    **config: Any,
) -> Any:
    """Record a run of one key datum, with settings changed at `section.name`."""
    for rank in ranks:
        settings = copy.deepcopy(SETTINGS)
        for path, value in changes if only_rank in (None, rank) else ():
            section, name = path.split(".")
            settings.setdefault(section, {})[name] = value
        recording = Recording(root, rank=rank, **config)
        recording.writer.close()
        recording.writer = RunWriter(
            root,
            rank=rank,
            config=recording.config.to_json(),
            existing="overwrite",
            task="statistics",
            settings=settings,
        )
        if entered:
            settings.pop("versions", None)
            for role, names in (weights or WEIGHTS).items():
                recording.writer.note(FirstEntry(role, names, settings))
        recording.writer.save_configurations(lambda: configurations or CONFIGURATIONS)
        recording.data("loss", 1.0)
        recording.end_step()
        recording.close()
    return open_run(root)


def rewrite(root: Path, content: Any, name: str = "run.json") -> Any:
    (root / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return open_run(root)


def manifest(root: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / "run.json").read_text())
    return content


def test_two_runs_of_one_configuration_differ_in_nothing(tmp_path: Path) -> None:
    """Times, ids, ports and directories are other in any two runs, and are not reported."""
    a = record(tmp_path / "a", buffer_mb=1)
    b = record(tmp_path / "b", ("environment.MS_SCHED_PORT", "9000"))
    found = preflight(a, b)
    assert found.differences == ()
    assert found.unknown == ()
    assert [(w.role, w.compared, w.agree) for w in found.weights] == [
        ("actor", 4, True),
        ("reference", 1, True),
    ]
    assert remark(found, "actor") == (
        "The initial weights of the actor agree (4 parameters), and no setting that both recorded "
        "differs."
    )


@pytest.mark.parametrize(
    ("path", "value", "a", "b"),
    [
        ("seeds.mindspore", 1235, "1234", "1235"),
        ("seeds.numpy_state", "z", "x", "z"),
        ("determinism.deterministic", "OFF", "ON", "OFF"),
        ("determinism.HCCL_DETERMINISTIC", None, "true", None),
        ("device.mode", "graph", "PyNative", "graph"),
        ("environment.HCCL_ALGO", "mesh", "ring", "mesh"),
        ("environment.OMP_NUM_THREADS", "8", None, "8"),
        ("environment.HCCL_ALGO", WITHHELD, "ring", WITHHELD),
        ("versions.mindspore", "99.0", ..., "99.0"),
    ],
)
def test_one_changed_setting_is_the_one_difference(
    tmp_path: Path, path: str, value: Any, a: Any, b: Any
) -> None:
    """Each section's setting is found, by its name, with what both runs say."""
    found = preflight(record(tmp_path / "a"), record(tmp_path / "b", (path, value)))
    (difference,) = found.differences
    assert f"{difference.section}.{difference.name}" == path
    assert a is ... or difference.a == a
    assert difference.b == b
    assert found.unknown == ()


def test_configurations_are_compared_by_path(tmp_path: Path) -> None:
    """Lists by index, missing keys on one side; equal numbers and NaNs are equal."""
    other = {
        "actor": {"layers": [2, 5, 6], "lr": 1, "nan": "NaN", "seq": None, "name": "llama"},
        "msprobe_config": {"dump_path": "b"},
    }
    mine = {**CONFIGURATIONS, "msprobe_config": {"dump_path": "a"}}
    found = preflight(
        record(tmp_path / "a", configurations=mine), record(tmp_path / "b", configurations=other)
    )
    assert [(d.name, d.a, d.b) for d in found.differences] == [
        ("actor.layers.1", "4", "5"),
        ("actor.layers.2", None, "6"),
        ("actor.seq", None, "None"),
    ]


def test_a_number_and_its_text_are_told_apart(tmp_path: Path) -> None:
    """What reads alike but is of another type shows how."""
    a = record(tmp_path / "a", configurations={"x": 1, "y": True})
    b = record(tmp_path / "b", configurations={"x": "1", "y": 1})
    assert [(d.name, d.a, d.b) for d in preflight(a, b).differences] == [
        ("x", "1", "'1'"),
        ("y", "True", "1"),
    ]


def test_settings_of_the_probe_count_where_they_change_what_is_recorded(tmp_path: Path) -> None:
    """The task and the step window do, the buffer does not."""
    a, b = record(tmp_path / "a"), record(tmp_path / "b", task="tensor", buffer_mb=3, strict=True)
    (difference,) = preflight(a, b).differences
    assert (difference.section, difference.name) == ("msprobe_config", "task")
    assert remark(preflight(a, b), None).startswith("The initial weights of the 2 networks agree")


def test_weights_are_compared_by_role_and_name(tmp_path: Path) -> None:
    """Different ones, and those of one run alone; unlike algorithms and None are unknown."""
    weights = {
        "actor": {
            "layers.0.weight": "xxh3_128:0",
            "layers.1.weight": "xxh3_128:changed",
            "layers.2.weight": "crc32:2",
            "layers.3.weight": None,
            "new": "xxh3_128:5",
        },
        "critic": {"w": "xxh3_128:1"},
    }
    found = preflight(record(tmp_path / "a"), record(tmp_path / "b", weights=weights))
    (actor,) = found.weights
    assert actor == Weights("actor", 2, ("layers.1.weight",), (), ("new",))
    assert not actor.agree
    assert found.unknown == (
        "initial weights of actor: 1 parameter(s) without a fingerprint in one run",
        "initial weights of actor: 1 parameter(s) with fingerprints of different algorithms",
        "initial weights of reference: only run A recorded them",
        "initial weights of critic: only run B recorded them",
    )
    assert remark(found, "actor") == (
        "The initial weights of the actor differ in 1 of 2 parameters, first layers.1.weight: "
        "check which checkpoint was loaded."
    )
    assert remark(found, "reference") == ""


def test_ranks_are_named_where_they_are_not_all(tmp_path: Path) -> None:
    """One difference for all ranks has no rank in its name, one of a single rank has."""
    everywhere, here = ("seeds.mindspore", 1), ("determinism.deterministic", "OFF")
    ranks = (0, 1, 2)
    a = record(tmp_path / "a", ranks=ranks)
    b = record(tmp_path / "b", everywhere, ranks=ranks)
    assert [d.name for d in preflight(a, b).differences] == ["mindspore"]
    b = record(tmp_path / "c", here, ranks=ranks, only_rank=1)
    assert [d.name for d in preflight(a, b).differences] == ["deterministic (rank 1)"]
    record(tmp_path / "d", ranks=ranks)
    content = json.loads((tmp_path / "d" / "run.rank2.json").read_text())
    content["initial_weights"]["actor"]["layers.0.weight"] = "xxh3_128:changed"
    b = rewrite(tmp_path / "d", content, "run.rank2.json")
    found = preflight(a, b)
    assert found.weights[0].different == ("layers.0.weight (rank 2)",)
    assert found.weights[0].compared == 4


def test_ranks_of_one_run_alone_are_unknown(tmp_path: Path) -> None:
    """They are no difference; without a common rank nothing can be said."""
    both, one = record(tmp_path / "a", ranks=(0, 1)), record(tmp_path / "b", ranks=(1,))
    assert preflight(both, one).unknown == ("rank 0: only run A recorded it",)
    found = preflight(record(tmp_path / "c"), one)
    assert found.unknown == ("settings and initial weights: the runs have no rank in common",)
    assert found.weights == ()


def test_many_values_of_many_ranks_are_brought_together(tmp_path: Path) -> None:
    """A setting with other values on each rank does not fill the report."""
    a, b = (
        [record(tmp_path / f"{name}{i}", ("seeds.random_state", f"{name}{i}")) for i in range(9)]
        for name in "ab"
    )
    for runs in (a, b):
        for rank, run in enumerate(runs):
            run.manifests[0]["world"]["rank"] = rank
        runs[0].run_files = [run.run_files[0] for run in runs]
    found = preflight(a[0], b[0]).differences
    assert len(found) == 5
    assert found[-1].name == "random_state (rank 4, 5, 6, 7, 8)"


def test_seeds_at_the_start_say_little(tmp_path: Path) -> None:
    """Where a run entered no network, only the seeds that were set by then are compared."""
    a = record(tmp_path / "a", entered=False)
    changes = [("seeds.mindspore", None), ("seeds.numpy_state", "z"), ("seeds.PYTHONHASHSEED", "0")]
    found = preflight(a, record(tmp_path / "b", *changes))
    assert [d.name for d in found.differences] == ["PYTHONHASHSEED"]
    assert [line.partition(" were")[0] for line in found.unknown] == [
        "seeds: mindspore, numpy_state",
        "initial weights: only run B recorded it",
    ]


def test_the_same_moment_of_both_runs_is_compared(tmp_path: Path) -> None:
    """A run that noted both moments is compared with another's start by its own start."""
    a = record(tmp_path / "a", entered=False)
    record(tmp_path / "b", ("seeds.mindspore", 77))
    content = manifest(tmp_path / "b")
    content["at_start"] = {"seeds": SETTINGS["seeds"]}
    assert preflight(a, rewrite(tmp_path / "b", content)).differences == ()


def test_what_a_run_lacks_is_unknown_not_different(tmp_path: Path) -> None:
    """One line for the sections that only one run has, one for those that neither has."""
    a = record(tmp_path / "a")
    record(tmp_path / "b")
    content = manifest(tmp_path / "b")
    for name in ("device", "seeds", "determinism", "environment", "taken", "initial_weights"):
        del content[name]
    del content["versions"]["numpy"]
    b = rewrite(tmp_path / "b", content)
    found = preflight(a, b)
    assert found.differences == ()
    assert found.unknown == (
        "versions: only run A recorded numpy",
        "device, seeds, determinism, environment, initial weights: only run A recorded them",
    )
    assert preflight(b, b).unknown == (
        "device, seeds, determinism, environment, initial weights: neither run recorded them",
    )
    assert remark(found, "actor") == ""


def test_msprobes_dumps_have_no_preflight(tmp_path: Path) -> None:
    """Runs without a run.json: one line, whichever side they stand on."""
    theirs = open_run(next(path for path in sorted(MSPROBE_DATA.iterdir()) if path.is_dir()))
    ours = record(tmp_path / "a")
    line = "versions, settings and initial weights: run B has no run.json that can be read"
    assert preflight(ours, theirs).unknown[0] == line
    assert preflight(theirs, theirs).differences == ()
    assert preflight(theirs, theirs).unknown[0].startswith("versions, settings and initial")


def test_what_was_withheld_in_both_runs_is_unknown(tmp_path: Path) -> None:
    """Two secrets are not called equal; several stand in one line."""
    change = ("environment.MS_X", WITHHELD)
    found = preflight(record(tmp_path / "a", change), record(tmp_path / "b", change))
    assert found.differences == ()
    assert found.unknown == ("environment: MS_X was withheld in both runs, possibly secret",)
    changes = change, ("environment.MS_Y", WITHHELD)
    found = preflight(record(tmp_path / "c", *changes), record(tmp_path / "d", *changes))
    assert found.unknown == ("environment: MS_X, MS_Y were withheld in both runs, possibly secret",)


def test_what_shares_its_reason_stands_in_one_line(tmp_path: Path) -> None:
    """Many names are counted, and braces in them are only braces."""
    notes = Notes()
    for i in range(30):
        notes.about("only_in", f"{{{i}}}", section="x", side="A")
    notes.add("weights_unreadable", role="{actor", side="A")
    (first, second) = (text_of(one, "en") for one in notes.messages())
    assert first.startswith("x: only run A recorded {0}, {1}, ")
    assert first.endswith(" and 10 more")
    assert second == "initial weights of {actor: those of run A cannot be read"


@pytest.mark.parametrize(
    ("key", "a", "b", "shown"),
    [
        ("db.password", "hunter2", "hunter3", (WITHHELD, f"{WITHHELD}, another value")),
        ("db.dbPassword", 1234, 2345, (WITHHELD, f"{WITHHELD}, another value")),
        ("obs.access_key", "hunter2", "", (WITHHELD, f"{WITHHELD}, another value")),
        ("hub.api_token", "hunter2", None, (WITHHELD, "None")),
        ("hub.url", "https://a:hunter2@b", "x", (WITHHELD, f"{WITHHELD}, another value")),
        ("hub.command", "x", "run --token hunter2", (WITHHELD, f"{WITHHELD}, another value")),
        ("hub.tokens.0", "hunter2", "x", (WITHHELD, f"{WITHHELD}, another value")),
        ("credentials.name", "hunter2", "x", (WITHHELD, f"{WITHHELD}, another value")),
        ("hub.x", {"secret": "hunter2"}, 3, (f"{{'secret': '{WITHHELD}'}}", "3")),
        ("hub.x", ..., {"y": [{"pwd": "hunter2"}]}, (None, f"{{'y': [{{'pwd': '{WITHHELD}'}}]}}")),
        ("hub.x", "ghp_hunter2hunter2", ..., (WITHHELD, None)),
        ("model.num_key_value_heads", 8, 4, ("8", "4")),
        ("model.pad_token", "<pad>", "</s>", ("<pad>", "</s>")),
        ("model.use_token_type", True, False, ("True", "False")),
        ("model.max_tokens", 8, 4, ("8", "4")),
        ("model.tokenizer", "llama", "qwen", ("llama", "qwen")),
    ],
)
def test_secrets_of_configurations_are_not_shown(
    tmp_path: Path, key: str, a: Any, b: Any, shown: Any
) -> None:
    """What looks like a secret, by its key or content, differs but is withheld on both sides."""
    runs = []
    for name, value in (("a", a), ("b", b)):
        run = record(tmp_path / name)
        content: Any = value
        for part in reversed(key.split(".")):
            content = [content] if part == "0" else {} if content is ... else {part: content}
        runs.append(rewrite(run.path, content, "configurations.json"))
    found = preflight(*runs)
    (difference,) = found.differences
    assert (difference.a, difference.b) == shown
    assert "hunter2" not in json.dumps(found.to_json())


def test_secrets_of_a_strangers_environment_are_not_shown(tmp_path: Path) -> None:
    """A run.json that holds a secret, of another version say, does not pass it on."""
    a = record(tmp_path / "a", ("environment.MS_X", "Bearer hunter2"))
    b = record(tmp_path / "b", ("environment.MS_X", "Bearer hunter3"))
    (difference,) = preflight(a, b).differences
    assert (difference.a, difference.b) == (WITHHELD, f"{WITHHELD}, another value")


def two_ranks(root: Path) -> Any:
    """Record a run whose rank 1 differs from rank 0 in everything that a preflight compares."""
    record(root, ranks=(0, 1))
    content = json.loads((root / "run.rank1.json").read_text())
    content["seeds"]["mindspore"] = 99
    content["environment"] |= {"HCCL_ALGO": "mesh", "RANK_ID": "1", "DEVICE_ID": "1"}
    content["device"]["device_id"] = 1
    content["initial_weights"]["actor"]["layers.0.weight"] = "xxh3_128:changed"
    return rewrite(root, content, "run.rank1.json")


RANK_1 = [("mindspore", "1234", "99"), ("HCCL_ALGO", "ring", "mesh")]


def test_chosen_ranks_are_compared_across_runs(tmp_path: Path) -> None:
    """`--ranks 0,1` compares A's rank 0 with B's rank 1, and what makes them two is left out."""
    a, b = two_ranks(tmp_path / "a"), two_ranks(tmp_path / "b")
    assert preflight(a, b) == preflight(a, b, {}) == preflight(a, b, {0: 0, 1: 1})
    assert preflight(a, b).differences == ()
    for ranks, expected in (({0: 1}, RANK_1), ({1: 1}, []), ({1: 0}, None)):
        found = preflight(a, b, ranks)
        shown = [(d.name, d.a, d.b) for d in found.differences]
        wanted = [(n, y, x) for n, x, y in RANK_1] if expected is None else expected
        assert shown == wanted
        assert found.weights[0].agree == (expected == [])
        assert found.unknown == ()


def test_two_ranks_of_one_run_are_compared(tmp_path: Path) -> None:
    """Within one run its configurations are the same; settings and weights are compared."""
    run = two_ranks(tmp_path / "a")
    found = preflight(run, run, {0: 1})
    assert [(d.name, d.a, d.b) for d in found.differences] == RANK_1
    assert found.weights[0].different == ("layers.0.weight",)
    assert found.unknown == ()


def test_runs_without_a_common_rank_are_compared_in_their_order(tmp_path: Path) -> None:
    """Ranks 0 and 1 of A against 4 and 5 of B: the comparison's rank, A's, is named."""
    a = record(tmp_path / "a", ranks=(0, 1))
    record(tmp_path / "b", ("seeds.mindspore", 7), ranks=(4, 5), only_rank=5)
    found = preflight(a, open_run(tmp_path / "b"), {0: 4, 1: 5})
    assert [d.name for d in found.differences] == ["mindspore (rank 1)"]
    assert found.unknown == ()
    assert all(weights.agree for weights in found.weights)


def test_a_chosen_rank_without_a_manifest_is_unknown(tmp_path: Path) -> None:
    """Nothing is taken from another rank in its place."""
    a, b = record(tmp_path / "a"), record(tmp_path / "b", ranks=(0, 1))
    found = preflight(a, b, {1: 1})
    line = "versions, settings and initial weights: run A has no run.json of rank 1 that can be"
    assert found.unknown == (f"{line} read",)
    assert preflight(b, a, {0: 0, 1: 1}).unknown == ("rank 1: only run A recorded it",)


def test_an_attempt_with_other_settings_is_said(tmp_path: Path) -> None:
    """The first attempt is compared; that a further one was different is not hidden."""
    a = record(tmp_path / "a")
    content = manifest(tmp_path / "a")
    content["attempts"].append({"versions": {}, "initial_weights": {}, "seeds": {}})
    b = record(tmp_path / "b")
    (line,) = preflight(a, rewrite(tmp_path / "b", content)).unknown
    assert line.startswith("attempt 2 of run B ran with other versions than")
    assert b is not None


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": [value]}
    return value


STRANGE: list[Any] = [
    *(None, 3, "text", [], [[]], {}, {"x": 1}, True, 1e400, -1, [1, "a", None], {"": {"": []}}),
    deep(80),
    {"rank": "0", "size": [1]},
    {"actor": 3, "reference": {"head.weight": 3}, "": {}},
    {"mindspore": {"a": []}, "HCCL_ALGO": ["x"], "numpy_state": 3},
    10**400,
    "\ud800",
]


@pytest.mark.parametrize("key", sorted({*SETTINGS, "schema", "versions", "world", "config"}))
def test_strange_values_never_raise(tmp_path: Path, key: str) -> None:
    """Whatever stands under a key of run.json, the rest is compared and JSON can be written."""
    a, strange = record(tmp_path / "a"), record(tmp_path / "b")
    content = manifest(tmp_path / "b")
    others = ("initial_weights", "attempts", "taken", "at_start", "tool_version")
    for value, other in itertools.product(STRANGE, others):
        strange.run_files = [RunFile({**content, key: value, other: value})]
        for found in (preflight(a, strange), preflight(strange, a), preflight(strange, strange)):
            assert isinstance(found, Preflight)
            assert isinstance(remark(found, "actor") + remark(found, None), str)
            json.dumps(found.to_json(), allow_nan=False)


def test_strange_manifests_and_configurations_never_raise(tmp_path: Path) -> None:
    """Lists of nothing, configurations that are no JSON or nested beyond measure."""
    a, b = record(tmp_path / "a"), record(tmp_path / "b")
    listed = [None, 3, {}, {"world": {"rank": 0}}, {"world": {"rank": 0}}]
    b.run_files = [*map(RunFile.from_json, listed)]
    assert "run B has two manifests of rank 0; the first was taken" in preflight(a, b).unknown
    deeper = rewrite(tmp_path / "b", "[" * 400 + "]" * 400, "configurations.json")
    shallow = rewrite(tmp_path / "a", "[" * 400 + "1" + "]" * 400, "configurations.json")
    assert any("nested deeper" in line for line in preflight(shallow, deeper).unknown)
    broken = rewrite(tmp_path / "b", "{", "configurations.json")
    unread = "configurations: configurations.json of run B cannot be read"
    assert unread in preflight(a, broken).unknown


def test_the_number_of_differences_is_capped(tmp_path: Path) -> None:
    """Two quite different configurations keep the other sections whole and say how many more."""
    a = record(tmp_path / "a", configurations={"x": list(range(5000))})
    b = record(tmp_path / "b", ("seeds.mindspore", 1), configurations={"x": list(range(1, 5001))})
    found = preflight(a, b)
    assert len(found.differences) == MAX_DIFFERENCES
    assert found.differences[0].section == "seeds"
    assert found.unknown == ("configurations: 4001 more differences, which are not listed",)


def difference(section: str, name: str, a: str | None = "1", b: str | None = "2") -> Difference:
    return Difference(section, name, a, b)


@pytest.mark.parametrize(
    ("found", "role", "sentence"),
    [
        (Preflight(), "actor", ""),
        (Preflight(weights=(Weights("critic", 3),)), "actor", ""),
        (
            Preflight((difference("seeds", "mindspore"),), (Weights("actor", 39),)),
            "actor",
            "The initial weights of the actor agree (39 parameters), but the seed differs: 1 "
            "against 2.",
        ),
        (
            Preflight(
                (difference("seeds", "mindspore"),), (Weights("reference", 39, ("a.b", "c")),)
            ),
            "reference",
            "The initial weights of the reference differ in 2 of 39 parameters, first a.b: check "
            "which checkpoint was loaded. The seed differs: 1 against 2.",
        ),
        (
            Preflight(weights=(Weights("actor", 2, (), ("a",), ("b", "c")),)),
            None,
            "The networks of the actor do not have the same parameters: 3 are in one run only, "
            "first a in A.",
        ),
        (
            Preflight(
                (
                    difference("versions", "mindspore"),
                    difference("determinism", "HCCL_DETERMINISTIC", None, "true"),
                )
            ),
            "actor",
            "The determinism setting HCCL_DETERMINISTIC differs: not set against true.",
        ),
        (
            Preflight((difference("environment", "X"), difference("configurations", "a.lr"))),
            "actor",
            "2 settings differ, the first: configurations a.lr: 1 against 2.",
        ),
        (
            Preflight((difference("versions", "cann"),)),
            None,
            "1 setting differs: versions cann: 1 against 2.",
        ),
        (
            Preflight((difference("seeds", "random_state"),), (Weights("actor", 1),)),
            None,
            "The initial weights of the actor agree (1 parameter); of the settings, only the state "
            "of Python's random generator differs.",
        ),
        (Preflight((difference("seeds", "random_state"),)), None, ""),
        (Preflight((difference("msprobe_config", "task"),)), None, ""),
    ],
)
def test_the_remark_names_what_most_probably_matters(
    found: Preflight, role: str | None, sentence: str
) -> None:
    """Weights first, then the seed, determinism, and a count of the other settings."""
    assert remark(found, role) == sentence


def test_generators_of_unlike_phases_are_not_held_against_each_other(tmp_path):
    """One run entered its first network in another phase, the first one not being recorded."""
    paths = [record_training(tmp_path / name, steps=1) for name in ("a", "b")]
    for path, phase in zip(paths, ("actor_generate_sequences", "reference_compute_log_prob")):
        manifest = path / "run.json"
        content = json.loads(manifest.read_text())
        content |= {"taken": "first_phase", "taken_in": phase}
        content["seeds"] = {"mindspore": 1, "numpy_state": f"xxh3_64:{phase}"}
        manifest.write_text(json.dumps(content))
    preflight = compare_runs(*paths).preflight
    assert not [d for d in preflight.differences if d.section == "seeds"]
    assert any("in another phase than in the other run" in said for said in preflight.unknown)


@pytest.mark.parametrize(
    ("found", "english", "chinese"),
    [
        (
            Difference("generation", "p.top_k", "1", "2", step=3, ranks=(1, 2)),
            "p.top_k from step 3 on (rank 1, 2)",
            "p.top_k（从 step 3 起）（rank 1, 2）",
        ),
        (
            Difference(
                "cells", "actor.a.p", "1", "2", "actor", ("actor_update",), None, ("a", "b"), "Norm"
            ),
            "actor.a.p and 1 more Norm cell in actor_update",
            "actor.a.p 等 2 个 Norm Cell（actor_update）",
        ),
        (
            Difference("modes", "a", "1", "2", "actor", ("actor_update",), 1, ("a", "b", "c")),
            "actor_update: a and 2 more cells from step 1 on",
            "actor_update：a 等 3 个 Cell（从 step 1 起）",
        ),
    ],
)
def test_what_a_setting_is_called_is_made_of_its_fields(found, english, chinese) -> None:
    """Code decides by setting, step and ranks; the words around them are each language's."""
    assert found.name == english == found.to_json()["name"]
    assert found.to_json()["setting"] == found.setting
    assert text_of(found.label, "zh") == chinese
