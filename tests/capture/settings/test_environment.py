"""What a process runs with: read, never set, and no secret in it."""

import random
from pathlib import Path

import numpy as np
import pytest
from helpers.programs import read_json, run_python

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.capture.settings.environment import (
    cann_version,
    determinism,
    device,
    seeds,
    settings_now,
)
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.common.secret import could_be_secret
from mindrlhf_msprobe.storage.layout import WITHHELD
from mindrlhf_msprobe.storage.manifest.variables import variables_of_field

#: Names of variables that say that they hold secrets, with values that do not.
SECRETS = dict.fromkeys(
    [
        *("MS_CLOUD_TOKEN", "HCCL_API_KEY", "ASCEND_SECRET_FILE", "MS_DB_PASSWORD"),
        *("MS_DB_PWD", "ASCEND_CREDENTIALS", "MS_AUTHOR", "ms_session_cookie", "HCCL_TLS_CERT"),
        *("MS_OBS_AK", "MS_CRED", "MS_CREDS", "MS_PWORD", "MS_PW", "MS_PW2", "MS_JWT_V"),
        *("HCCL_ENCRYPTION", "MS_API_TOKEN", "MS_API_TOKENS", "ASCEND_PASSWORD"),
        *("ASCEND_PASSWD", "ASCEND_PASSPHRASE", "ASCEND_PASS", "MS_DB_PASS", "MS_DBPASS"),
        *("MS_GRAPH_DB_PASS", "MS_GRAPH_PASSWORD", "MS_KERNEL_PASS_KEY", "HCCL_KEY"),
    ],
    "plain-word",
)
SECRET_VALUES = [
    "https://bob:hunter2@repo.example.com/simple",
    "redis://:hunter2@host:6379/0",
    "bob:hunter2@proxy:8080",
    "https://hunter2@example.com",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow",
    "url?token=hunter2",
    '{"api_key": "hunter2"}',
    "Bearer hunter2",
    "d41d8cd98f00b204e9800998ecf8427e",
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzEXbMhLEpEY",
    "ghp_abcdefghijklmnop1234",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
    "550e8400-e29b-41d4-a716-446655440000",
    "a" * 5000,
    "--password hunter2",
    "run --token hunter2 --fast",
    "--api-key hunter2",
    "--db_pass hunter2",
    "--pw hunter2",
    "password hunter2",
    "sshpass -p hunter2 ssh host",
    "mysql -phunter2 -h db",
    "mysqldump --host db -p hunter2",
    "redis-cli -a hunter2",
    "curl -u admin:hunter2 http://h",
    "curl -su admin:hunter2 http://h",
    "https://s.blob.example/x?sv=2024&sig=hunter2",
    "pw: hunter2",
    "jwt=hunter2",
    "pass=hunter2",
]
HARMLESS = [
    *("1", "true", "0,1,2,3,4,5,6,7", "17179869184", "level0:NA;level1:H-R", "^docker0,lo"),
    "/usr/local/Ascend/ascend-toolkit/8.0.RC3.alpha001/opp/built-in/op_impl/ai_core/tbe",
    "/usr/local/Ascend/ascend-toolkit/latest/lib64:/usr/local/Ascend/driver/lib64",
    "/home/ma-user/work/LLaMA2_7B/ckpt/rank_table_8p_ascend910b.json",
    "enable_vmm:True,vmm_align_size:2MB",
    "FlashAttentionScoreV2,PagedAttention,MatMulElemwise",
    "--disable_expand_ops=Softmax,Dropout --enable_cluster_ops=MatMul",
    "192.168.100.123:8118",
    "tokenizer=llama,tokenizer_type:fast",
    "--tokenizer llama --passes fold",
    "mask=1;design=2",
    "-O2 -pthread -use_past 1",
]


def test_values_that_look_like_a_credential_are_withheld_and_ordinary_ones_are_not() -> None:
    """Passwords in URLs, tokens, keys and PEM blocks; not numbers, switches, lists and paths."""
    given = {f"MS_{n}": value for n, value in enumerate([*SECRET_VALUES, *HARMLESS])}
    taken = variables_of_field(given)
    for name, value in given.items():
        assert taken[name] == (WITHHELD if value in SECRET_VALUES else value)
    for value in SECRET_VALUES:
        assert determinism({"HCCL_DETERMINISTIC": value})["HCCL_DETERMINISTIC"] == WITHHELD
        assert seeds({"PYTHONHASHSEED": value})["PYTHONHASHSEED"] == WITHHELD


def test_names_that_say_secret_are_left_out_and_those_that_only_resemble_it_are_not() -> None:
    """Whatever the value; a compiler's pass and a tokenizer are no secrets, if theirs is none."""
    names = "MS_PASSES MS_DEV_GRAPH_KERNEL_PASS HCCL_TOKENIZER MS_DEV_DUMP_IR_PASSES MS_MASK"
    for name in f"{names} MS_FUSION_PASS MS_DEV_GRAPH_KERNEL_FLAGS MS_SPIN".split():
        assert variables_of_field({name: "fold,unroll"}) == {name: "fold,unroll"}
        assert variables_of_field({name: "Bearer hunter2"}) == {name: WITHHELD}
    for name in SECRETS:
        assert variables_of_field({name: "1"}) == {}


def test_random_tokens_are_recognised_whatever_their_alphabet() -> None:
    """No random base64 or hexadecimal token of 40 characters or more passes."""
    source = random.Random(7)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    for _ in range(2000):
        assert could_be_secret("".join(source.choices(alphabet + "-_", k=44)))
        assert could_be_secret(source.randbytes(20).hex())


def test_only_variables_of_the_field_are_taken() -> None:
    """HOME, PATH and everything else that does not steer a training stays out."""
    environment = {"HCCL_ALGO": "ring", "OMP_NUM_THREADS": "8", "RANK_SIZE": "2", "GLOG_v": "3"}
    others = {"HOME": "/root", "PATH": "/bin", "WANDB_MODE": "online", "HTTP_PROXY": "a:b"}
    assert variables_of_field({**environment, **others, **SECRETS}) == environment


def test_what_has_a_section_of_its_own_is_not_written_twice() -> None:
    """Seeds and determinism settings have sections of their own; unset ones are None there."""
    environment = {"HCCL_DETERMINISTIC": "true", "PYTHONHASHSEED": "0"}
    assert variables_of_field(environment) == {}
    assert determinism(environment)["HCCL_DETERMINISTIC"] == "true"
    assert determinism(environment)["LCCL_DETERMINISTIC"] is None
    assert seeds(environment)["PYTHONHASHSEED"] == "0"


def test_many_and_long_variables_are_cut() -> None:
    """A hostile environment cannot blow up run.json."""
    taken = variables_of_field({f"MS_{i}": "word " * 200 for i in range(2000)})
    assert len(taken) == 500
    assert all(value.endswith("… (1000 characters)") for value in taken.values())
    assert variables_of_field({"MS_" + "A" * 5000: "1"}) == {}


def test_secrets_do_not_land_in_run_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own file holds none of the secrets the process was given."""
    for i, value in enumerate(SECRET_VALUES):
        monkeypatch.setenv(f"MS_VALUE_{i}", value)
    for name in SECRETS:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("HCCL_ALGO", "ring")
    settings = {"msprobe": True, "dump_path": str(tmp_path / "run"), "key_data_dump": True}
    with Probe.from_config(settings) as probe:
        probe.save_data(loss=1.0)
        probe.step()
    text = (tmp_path / "run" / "run.json").read_text(encoding="utf-8")
    for secret in ("hunter2", *SECRETS, *SECRET_VALUES):
        assert secret not in text
    assert '"HCCL_ALGO": "ring"' in text


def test_looking_at_the_generators_does_not_advance_them() -> None:
    """The numbers a training draws are the same whether it was read or not; equal seeds have equal
    fingerprints, and other seeds others."""
    np.random.seed(3)
    random.seed(3)
    before = seeds()
    assert seeds() == before
    drawn = np.random.rand(), random.random()
    assert seeds()["numpy_state"] != before["numpy_state"]
    assert seeds()["random_state"] != before["random_state"]
    np.random.seed(3)
    random.seed(3)
    assert (np.random.rand(), random.random()) == drawn
    np.random.seed(3)
    assert seeds()["numpy_state"] == before["numpy_state"]
    np.random.seed(4)
    assert seeds()["numpy_state"] != before["numpy_state"]


def test_mindspore_is_read_but_not_imported(tmp_path: Path) -> None:
    """A probe for key data alone neither imports MindSpore nor says anything of its context."""
    program = """
import sys
from mindrlhf_msprobe import Probe
with Probe.from_config({"msprobe": True, "dump_path": "run", "key_data_dump": True}) as probe:
    probe.save_data(loss=1.0)
    probe.step()
print("mindspore" in sys.modules)
"""
    result = run_python(program, tmp_path)
    assert result.stdout.strip() == "False", result.stderr
    run = read_json(tmp_path / "run" / "run.json")
    assert "mode" not in run["device"]
    assert "mindspore" not in run["seeds"]
    assert "deterministic" not in run["determinism"]
    assert run["device"]["machine"]
    assert run["taken"] == "start"


def test_mindspores_context_is_recorded() -> None:
    """Device target, mode, determinism and jit settings are those MindSpore says."""
    ms = pytest.importorskip("mindspore")
    found = device()
    assert (found["device_target"], found["mode"]) == ("CPU", "PyNative")
    assert found["device_id"] == ms.get_context("device_id")
    assert determinism()["deterministic"] == ms.get_context("deterministic")
    assert determinism()["jit_config"] == {}
    assert seeds()["mindspore"] == ms.get_seed()


def test_a_fault_costs_one_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be found out is told, and the other sections are there."""

    def broken(**_: object) -> None:
        raise RuntimeError("no state")

    monkeypatch.setattr(np.random, "get_state", broken)
    faults: list[tuple[str, str]] = []
    found = settings_now(lambda what, error: faults.append((in_words(what, "en"), str(error))))
    assert faults == [("the seeds of this process", "no state")]
    assert set(found) == {"device", "determinism", "environment"}


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        (
            "version.cfg",
            "# version: 1.0\nruntime_running_version=[7.6.0.1.220:8.0.0]\n"
            "toolkit_running_version=[7.6.0.1.220:8.0.0]\n",
            "8.0.0 (7.6.0.1.220)",
        ),
        (
            "x86_64-linux/ascend_toolkit_install.info",
            "package_name=Ascend-cann-toolkit\nversion=8.1.RC1\n"
            "innerversion=V100R001C21SPC001B218\narch=x86_64\n",
            "8.1.RC1 (V100R001C21SPC001B218)",
        ),
        ("version.info", "Version=7.7.0.1.238\nversion_dir=8.2.RC1\n", "8.2.RC1 (7.7.0.1.238)"),
        ("version.cfg", "toolkit_running_version=[8.3]", "8.3"),
        ("version.cfg", "version=" + "9" * 500, None),
        ("version.cfg", "\0\xff nothing", None),
    ],
)
def test_the_version_of_cann_is_read_from_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, version: str | None
) -> None:
    """The toolkit's version files are read where the environment says it is, or at its place."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    path = tmp_path / "latest" / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="latin-1")
    nowhere = tmp_path / "no" / "toolkit" / "latest"
    root = str(tmp_path / "latest")
    assert cann_version({"ASCEND_HOME_PATH": root}, nowhere) == version
    assert cann_version({"ASCEND_TOOLKIT_HOME": root}, nowhere) == version
    assert cann_version({}, tmp_path / "latest") == version
    assert cann_version({"ASCEND_HOME_PATH": "\0"}, nowhere) is None
