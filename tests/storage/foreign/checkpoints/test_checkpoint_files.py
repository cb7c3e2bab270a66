"""Checkpoints are read as MindSpore and safetensors write them; hostile ones are refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers.checkpoint_files import (
    part,
    safetensors,
    value,
    varint,
    write_ckpt,
    write_safetensors,
    write_strategy,
)

from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.foreign.checkpoints.opening import is_checkpoint, open_checkpoint
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import CheckpointError

RNG = np.random.default_rng(5)
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def elements(checkpoint, name="w", rank=0):
    tensor = checkpoint.ranks[rank][name]
    assert tensor.why is None, tensor.why
    return tensor.read(0, tensor.size).reshape(tensor.shape)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What MindSpore writes of a few parameters in both formats, and the parameters."""
    ms = pytest.importorskip("mindspore")
    arrays = {
        "layer.weight": RNG.normal(size=(8, 4)).astype(np.float32),
        "layer.bias": RNG.normal(size=5).astype(np.float16),
        "count": np.array(7, np.int64),
        "mask": np.array([True, False]),
        "bytes": np.arange(-2, 3, dtype=np.int8),
        "wide": np.array([1 + 2j, -3j], np.complex128),
    }
    tensors = {name: ms.Tensor(array) for name, array in arrays.items()}
    tensors["half"] = ms.Tensor(arrays["layer.weight"]).astype(ms.bfloat16)
    arrays["half"] = tensors["half"].astype(ms.float32).asnumpy()
    saved = [{"name": name, "data": tensor} for name, tensor in tensors.items()]
    folder = tmp_path_factory.mktemp("written")
    ms.save_checkpoint(saved, str(folder / "a.ckpt"), append_dict={"note": "hi 你好"})
    ms.save_checkpoint(saved, str(folder / "crc.ckpt"), crc_check=True)
    simple = [one for one in saved if one["name"] != "wide"]  # safetensors have no complex128
    ms.save_checkpoint(simple, str(folder / "a.safetensors"), format="safetensors")
    # Of bfloat16 it computes no CRC, of an integer without axes a wrong one.
    plain = [one for one in simple if one["name"] not in ("half", "count")]
    ms.save_checkpoint(plain, str(folder / "crc.safetensors"), format="safetensors", crc_check=True)
    for mode in ("AES-GCM", "AES-CBC", "SM4-CBC"):
        ms.save_checkpoint(
            saved, str(folder / f"{mode}.ckpt"), enc_key=b"0123456789abcdef", enc_mode=mode
        )
    return folder, arrays


@pytest.mark.parametrize("name", ["a.ckpt", "crc.ckpt", "a.safetensors", "crc.safetensors"])
def test_what_mindspore_writes_is_read_to_the_bit(written, name):
    """Every dtype, a scalar, and a text beside; the CRC at the end is no parameter."""
    folder, arrays = written
    checkpoint = open_checkpoint(folder / name)
    left_out = {"a.safetensors": {"wide"}, "crc.safetensors": {"wide", "half", "count"}}
    keys = set(arrays) - left_out.get(name, set())
    assert set(checkpoint.ranks[0]) == keys
    for key in keys:
        np.testing.assert_array_equal(elements(checkpoint, key), arrays[key], strict=True)
    assert checkpoint.texts == ({"note": "hi 你好"} if name == "a.ckpt" else {})
    assert checkpoint.open_end == (name == "a.ckpt")
    if "half" in keys:
        assert checkpoint.ranks[0]["half"].dtype == "BFloat16"


@pytest.mark.parametrize("name", ["crc.ckpt", "crc.safetensors"])
def test_a_file_that_is_not_what_its_crc_says_is_damaged(written, tmp_path, name):
    """One bit of an element, which no structure shows."""
    folder, arrays = written
    content = bytearray((folder / name).read_bytes())
    at = content.index(arrays["layer.weight"].tobytes())
    content[at + 5] ^= 1
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"damaged: the CRC-32 that it holds is 0x"):
        open_checkpoint(path)


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_encrypted_checkpoints_are_named(written, mode):
    """Whatever the mode."""
    with pytest.raises(CheckpointError, match="encrypted"):
        open_checkpoint(written[0] / f"{mode}.ckpt")


def test_metadata_of_a_parameters_name_are_not_its_dtype(tmp_path):
    """The metadata say format: pt; a parameter may be called so."""
    path = tmp_path / "a.safetensors"
    header = {"__metadata__": {"format": "pt", "w": "x"}, "format": ENTRY}
    path.write_bytes(safetensors(header, bytes(8)))
    assert elements(open_checkpoint(path), "format").tolist() == [0, 0]


def test_numbered_files_without_an_index_are_all_there(tmp_path):
    """`-00001-of-00003` says how many they are."""
    w = np.zeros(2, np.float32)
    for n in (1, 3):
        write_safetensors(tmp_path / f"model-0000{n}-of-00003.safetensors", {f"w{n}": w})
    with pytest.raises(CheckpointError, match="number 2 is missing"):
        open_checkpoint(tmp_path)
    write_safetensors(tmp_path / "model-00002-of-00003.safetensors", {"w2": w})
    assert sorted(open_checkpoint(tmp_path).ranks[0]) == ["w1", "w2", "w3"]


def test_a_parameter_in_slices_is_one(tmp_path, monkeypatch):
    """MindSpore cuts what is larger than 512 MB; here what is larger than a kilobyte."""
    ms = pytest.importorskip("mindspore")
    serialization = pytest.importorskip("mindspore.train.serialization")
    monkeypatch.setattr(serialization, "SLICE_SIZE", 1)
    array = RNG.normal(size=(33, 37)).astype(np.float32)
    saved = [{"name": "big", "data": ms.Tensor(array)}, {"name": "w", "data": ms.Tensor(array[0])}]
    path = tmp_path / "sliced.ckpt"
    ms.save_checkpoint(saved, str(path))
    assert path.read_bytes().count(b"\x0a\x03big") > 4
    checkpoint = open_checkpoint(path)
    assert np.array_equal(elements(checkpoint, "big"), array)
    assert np.array_equal(checkpoint.ranks[0]["big"].read(250, 800), array.reshape(-1)[250:800]), (
        "across slices"
    )
    assert np.array_equal(elements(checkpoint, "w"), array[0])


def test_8_bit_floats_have_their_values(tmp_path):
    """Both kinds: the one with infinities, and the one with a wider range."""
    bits = bytes(range(256))
    header = {
        "e4m3": {"dtype": "F8_E4M3", "shape": [256], "data_offsets": [0, 256]},
        "e5m2": {"dtype": "F8_E5M2", "shape": [256], "data_offsets": [256, 512]},
    }
    path = tmp_path / "f8.safetensors"
    path.write_bytes(safetensors(header, bits * 2))
    found = open_checkpoint(path)
    e4m3, e5m2 = elements(found, "e4m3"), elements(found, "e5m2")
    assert (e4m3[0x38], e4m3[0x7E], e4m3[0x01], e4m3[0xB8]) == (1.0, 448.0, 2.0**-9, -1.0)
    assert np.isnan(e4m3[[0x7F, 0xFF]]).all()
    assert (e5m2[0x3C], e5m2[0x7B], e5m2[0x01]) == (1.0, 57344.0, 2.0**-16)
    assert np.isposinf(e5m2[0x7C])


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * 10_000_000)
    return file.getvalue()


class Loud:
    """Must never be unpickled."""

    def __reduce__(self):
        return os.abort, ()


GOOD = value("w", "Float32", [2], bytes(8))
POINTER = b"version https://git-lfs.github.com/spec/v1\n"
NESTED = b'{"model": {"w": [1, 2]}, "epoch": 1}'
TWICE = b'{"w":%b,"w":%b}' % ((json.dumps(ENTRY).encode(),) * 2)


def of(content: int = 8, **changed: object) -> bytes:
    """Return a file of one parameter whose entry is changed, with so many bytes of content."""
    return safetensors({"w": {**ENTRY, **changed}}, bytes(content))


def two(content: int, *place: int) -> bytes:
    """Return a file of two parameters, of which the second lies elsewhere."""
    return safetensors({"v": ENTRY, "w": {**ENTRY, "data_offsets": [*place]}}, bytes(content))


REFUSED = {
    "empty.ckpt": (b"", "is empty"),
    "torch.ckpt": (zipped(), "zip"),
    "pickle.ckpt": (pickle.dumps(Loud()), "pickle"),
    "noise.ckpt": (b"\x17\x2a", "begins with 17 2a"),
    "half.ckpt": (GOOD[:-3], "cut short"),
    "tag_alone.ckpt": (part(1, part(1, b"w")), "no name or no value"),
    "nameless.ckpt": (part(1, part(2, part(2, b"Float32") + part(3, b""))), "no name or no value"),
    "hollow.ckpt": (part(1, part(1, b"w") + part(2, part(2, b"Int8"))), "no content"),
    "field.ckpt": (GOOD + part(9, b"x"), "field 9"),
    "endless.ckpt": (b"\x0a" + b"\xff" * 20, "no whole number"),
    "huge.ckpt": (b"\x0a" + varint(1 << 62), "cut short"),
    "name.ckpt": (part(1, part(1, b"n" * 5000)), "a name of 5000 bytes"),
    "empty.safetensors": (b"", "is empty"),
    "short.safetensors": (b"\x01\0\0", "not a safetensors"),
    "zip.safetensors": (zipped(), "is a zip archive"),
    "header.safetensors": (struct.pack("<Q", 1 << 40) + b"{}", "at most"),
    "cut_header.safetensors": (struct.pack("<Q", 100) + b"{}", "cut short"),
    "old_pickle.ckpt": (pickle.dumps({"w": 1}, protocol=0), "is a pickle"),
    "tar.ckpt": (b"BZh91AY" + bytes(30), "is compressed"),
    "pointer.safetensors": (POINTER, "`git lfs pull`"),
    "pointer.ckpt": (POINTER, "`git lfs pull`"),
    "plain.ckpt": (b'{"a": 1}', "is JSON"),
    "nested.ckpt": (NESTED, "is JSON"),
    "nested.safetensors": (NESTED, "is JSON"),
    "ninth.ckpt": (b'{"model":{"w": [1, 2]}, "epoch": 1}', "is JSON"),
    "ninth.safetensors": (b'{"abcde":{"w": [1, 2]}, "epoch": 1}', "is JSON"),
    "indented.bin": (b'{\n                                "a": [1, 2]}', "is JSON"),
    "gguf.ckpt": (b"GGUF" + bytes(30), "is a GGUF file"),
    "json.safetensors": (safetensors(b"{nothing", b""), "not valid JSON"),
    "deep.safetensors": (safetensors(b'{"a":' + b"[" * 200_000, b""), "not valid JSON"),
    "list.safetensors": (safetensors(b"[1]", b""), "not a safetensors"),
    "twice.safetensors": (safetensors(TWICE, bytes(8)), "twice"),
    "overlap.safetensors": (two(12, 4, 12), "overlap"),
    "hole.safetensors": (two(20, 12, 20), "no parameter"),
    "rest.safetensors": (of(12), "12 bytes of data"),
    "half.safetensors": (of(4), "cut short"),
    "back.safetensors": (of(shape=[0], data_offsets=[8, 0]), "bytes"),
    "size.safetensors": (of(shape=[3]), "shape [3]"),
    "shape.safetensors": (of(shape=[-2]), "expected dtype"),
    "wrap.safetensors": (of(shape=[1 << 62, 1 << 62]), "not those of shape"),
    "entry.safetensors": (safetensors({"w": 3}, b""), "expected dtype"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_checkpoint_is_refused(tmp_path, name):
    """With the file's name and what is wrong; nothing is unpickled or unpacked."""
    content, words = REFUSED[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        open_checkpoint(path)
    assert name in str(refused.value)
    assert words in str(refused.value).replace(name, "")


@pytest.mark.parametrize("kind", [write_ckpt, write_safetensors])
def test_no_cut_or_changed_byte_ends_in_anything_but_an_answer(tmp_path, kind):
    """A file cut anywhere, or with any byte changed, is refused or read: nothing else is raised."""
    arrays = {"a.w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(1, np.int64)}
    whole = kind(tmp_path / "whole", arrays).read_bytes()
    path = tmp_path / ("x.ckpt" if kind is write_ckpt else "x.safetensors")
    damaged = [whole[:n] for n in range(len(whole))]
    damaged += [
        whole[:i] + bytes([whole[i] ^ (1 << i % 8)]) + whole[i + 1 :] for i in range(len(whole))
    ]
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            for tensor in open_checkpoint(path).ranks[0].values():
                if tensor.why is None and tensor.size:
                    assert tensor.read(0, tensor.size).size == tensor.size
        except CheckpointError:
            refused += 1
    assert refused > len(whole) // 2


def test_slices_without_end_are_refused(tmp_path, monkeypatch):
    """They take no more memory than as many parameters; nor does a shape of a million axes."""
    monkeypatch.setattr(bounds, "PARAMETERS", 100)
    path = tmp_path / "many.ckpt"
    path.write_bytes(value("w", "Int8", [1], b"") * 101)
    with pytest.raises(CheckpointError, match="more than 100"):
        open_checkpoint(path)
    tensor = part(1, b"\x01" * 1_000_000) + part(2, b"Int8") + part(3, b"a")
    path.write_bytes(part(1, part(1, b"w") + part(2, tensor)))
    with pytest.raises(CheckpointError, match="more than 64 axes"):
        open_checkpoint(path)


def test_parameters_that_cannot_be_read_are_there_and_say_why(tmp_path):
    """One bad parameter does not hide the others."""
    content = b"".join(
        (
            value("short", "Float32", [3], bytes(8)),
            value("twice", "Int8", [1], b"a"),
            value("good", "Int8", [2], b"ab"),
            value("twice", "Int8", [1], b"b"),
            value("int4", "Int4", [4], b"ab"),
            value("empty", "Int8", [0, 2**62, 2**62], b""),
            value("unlike", "Int8", [2], b"a") + value("unlike", "UInt8", [2], b"b"),
            part(1, part(1, b"map") + part(3, b"")),
        )
    )
    path = tmp_path / "some.ckpt"
    path.write_bytes(content)
    found = open_checkpoint(path).ranks[0]
    codes = {name: tensor.why and tensor.why.code for name, tensor in found.items()}
    assert codes == {
        "short": "checkpoint.size",
        "twice": "checkpoint.twice",
        "good": None,
        "int4": "checkpoint.dtype",
        "empty": "unread.claimed_shape",
        "unlike": "checkpoint.unlike_slices",
        "map": "checkpoint.map",
    }


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path):
    """Cut short, it would be a signal if it were mapped."""
    path = write_ckpt(tmp_path / "w.ckpt", {"w": np.arange(100, dtype=np.float32)})
    tensor = open_checkpoint(path).ranks[0]["w"]
    os.truncate(path, 50)
    with pytest.raises(CheckpointError, match="changed or replaced"):
        tensor.read(0, 100)


def index(folder: Path, files: dict[str, str]) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return path


def test_an_index_brings_files_together(tmp_path):
    """By its path or by that of its directory; it is told what the index does not list."""
    first, second = np.float32([1, 2]), np.float32([3])
    write_safetensors(tmp_path / "1.safetensors", {"a": first})
    write_safetensors(tmp_path / "2.safetensors", {"b": second, "c": second})
    path = index(tmp_path, {"a": "1.safetensors", "b": "2.safetensors", "d": "2.safetensors"})
    for given in (path, tmp_path):
        assert is_checkpoint(given)
        found = open_checkpoint(given)
        assert np.array_equal(elements(found, "b"), second)
        assert found.ranks[0]["d"].why.code == "checkpoint.not_in_file"
        assert [note.code for note in found.notes] == ["checkpoint.unlisted"]


def test_an_index_that_names_the_wrong_file_is_said(tmp_path):
    """The parameter is read where it is; one that two files hold is refused."""
    write_safetensors(tmp_path / "1.safetensors", {"a": np.float32([1])})
    write_safetensors(tmp_path / "2.safetensors", {"b": np.float32([2]), "c": np.float32([3])})
    files = {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}
    found = open_checkpoint(index(tmp_path, files))
    assert elements(found, "b") == [2]
    (note,) = found.notes
    assert note.code == "checkpoint.in_another_file"
    assert note.params == {
        **{"names": ["b"], "count": 1},
        **{"file": "2.safetensors", "said": "1.safetensors"},
    }
    write_safetensors(tmp_path / "1.safetensors", {"a": np.float32([1]), "b": np.float32([2])})
    with pytest.raises(CheckpointError, match=r"'b', as 1\.safetensors does"):
        open_checkpoint(index(tmp_path, files))


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "..", "", "a/b", "a\0", "l"])
def test_an_index_leads_nowhere_else(tmp_path, name):
    """Neither by a path nor by a symbolic link."""
    write_safetensors(tmp_path / "x.safetensors", {"a": np.float32([1])})
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "l").symlink_to(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="nothing else is opened"):
        open_checkpoint(index(folder, {"a": name}))


def test_a_snapshot_of_the_hubs_cache_is_read(tmp_path):
    """There all files are links to blobs beside the snapshots; what leads further is refused."""
    blob = write_safetensors(tmp_path / "model" / "blobs" / "ab", {"a": np.float32([1])})
    other = write_safetensors(tmp_path / "secret", {"a": np.float32([1])})
    snapshot = tmp_path / "model" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to(blob)
    assert elements(open_checkpoint(snapshot), "a") == [1]
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(other)
    with pytest.raises(CheckpointError, match="leaves the directory"):
        open_checkpoint(snapshot)


def test_a_directory_says_what_is_wrong_with_it(tmp_path):
    """Nothing in it, several in it, only pickles in it, one name in two files."""
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        open_checkpoint(tmp_path)
    arrays = {"w": np.float32([1])}
    write_ckpt(tmp_path / "1.ckpt", arrays)
    assert elements(open_checkpoint(tmp_path)) == [1]
    write_ckpt(tmp_path / "2.ckpt", arrays)
    with pytest.raises(CheckpointError, match=r"1\.ckpt, 2\.ckpt"):
        open_checkpoint(tmp_path)
    folder = tmp_path / "two"
    for name in ("1.safetensors", "2.safetensors"):
        write_safetensors(folder / name, arrays)
    with pytest.raises(CheckpointError, match=r"as 1\.safetensors does"):
        open_checkpoint(folder)


def shards(folder: Path, ranks: dict[int, dict[str, np.ndarray]]) -> Path:
    for rank, arrays in ranks.items():
        write_ckpt(folder / f"rank_{rank}" / "net-1_2.ckpt", arrays)
    return folder


WHOLE = RNG.normal(size=(4, 6)).astype(np.float32)


def test_ranks_are_put_together_by_their_strategy(tmp_path):
    """Rows, columns, both, the optimizer's shards, and what every rank has; read in any part."""
    rows, columns = np.split(WHOLE, 2), np.split(WHOLE, 2, axis=1)
    ranks = {
        rank: {
            "rows": rows[rank % 2],
            "columns": columns[rank // 2],
            "both": rows[rank // 2][:, 3 * (rank % 2) : 3 * (rank % 2) + 3],
            "copies": WHOLE,
            "step": np.array(3, np.int64),
        }
        for rank in range(4)
    }
    folder = shards(tmp_path / "checkpoint", ranks)
    layouts = {
        "rows": ([2, 2], [0, -1]),
        "columns": ([2, 2], [-1, 1]),
        "both": ([2, 2], [1, 0]),
        "copies": ([4], [-1, -1]),
    }
    write_strategy(tmp_path / "strategy" / "ckpt_strategy_rank_0.ckpt", layouts)
    found = open_checkpoint(folder)
    assert found.whole
    for name in layouts:
        assert np.array_equal(elements(found, name), WHOLE), name
        tensor = found.ranks[0][name]
        for start in range(24):
            part_of = tensor.read(start, min(start + 7, 24))
            assert np.array_equal(part_of, WHOLE.reshape(-1)[start : start + 7]), name
    assert elements(found, "step") == 3


def test_shards_of_the_optimizer_are_put_together(tmp_path):
    """The first axis is cut by the model first, then over the ranks that hold the same."""
    pieces = np.split(WHOLE, 4)  # model part 0: pieces 0 and 1, over ranks 0 and 2
    ranks = {0: 0, 2: 1, 1: 2, 3: 3}
    folder = shards(tmp_path, {rank: {"w": pieces[i]} for rank, i in sorted(ranks.items())})
    layouts = {"w": ([2, 2], [0, -1])}
    write_strategy(folder / "src_strategy.ckpt", layouts, shards=-1)
    assert np.array_equal(elements(open_checkpoint(folder)), WHOLE)


def test_stages_of_a_pipeline_are_put_together(tmp_path):
    """Each has a strategy file; what two stages share has to agree."""
    halves = np.split(WHOLE, 2)
    ranks = {r: {f"layer{r // 2}": halves[r % 2], "shared": WHOLE} for r in range(4)}
    folder = shards(tmp_path, ranks)
    for stage in range(2):
        layouts = {f"layer{stage}": ([2], [0, -1]), "shared": ([2], [-1, -1])}
        write_strategy(folder / "strategy" / f"strategy{stage}.ckpt", layouts, stage=stage)
    found = open_checkpoint(folder)
    for name in ("layer0", "layer1", "shared"):
        assert np.array_equal(elements(found, name), WHOLE)


def test_copies_that_differ_and_shards_that_are_missing_are_unreadable(tmp_path):
    """Nothing is taken for the whole that is not."""
    halves = np.split(WHOLE, 2)
    ranks = {0: {"w": halves[0], "c": WHOLE}, 1: {"c": WHOLE + 1}}
    folder = shards(tmp_path, ranks)
    write_strategy(folder / "strategy.ckpt", {"w": ([2], [0, -1]), "c": ([2], [-1, -1])})
    found = open_checkpoint(folder).ranks[0]
    assert found["w"].why.code == "checkpoint.shard_missing"
    with pytest.raises(CheckpointError, match="hold the same part of 'c'"):
        found["c"].read(0, 24)


def test_a_strategy_of_other_ranks_is_refused(tmp_path):
    """Three ranks, and a strategy of two."""
    folder = shards(tmp_path, {rank: {"w": WHOLE} for rank in range(3)})
    write_strategy(folder / "strategy.ckpt", {"w": ([2], [0, -1])})
    with pytest.raises(CheckpointError, match="is of 2 ranks"):
        open_checkpoint(folder)
    (folder / "strategy.ckpt").write_bytes(b"\x0a\x0b\x0c")
    with pytest.raises(CheckpointError, match=r"strategy\.ckpt"):
        open_checkpoint(folder)


def test_a_rank_alone_is_said_to_be_one_of_several(tmp_path):
    """Beside the strategy of two, whatever that file is called."""
    halves = np.split(WHOLE, 2)
    folder = shards(tmp_path, {rank: {"w": half} for rank, half in enumerate(halves)})
    write_strategy(folder / "strategy" / "src.ckpt", {"w": ([2], [0, -1])})
    assert np.array_equal(elements(open_checkpoint(folder)), WHOLE)
    shutil.rmtree(folder / "rank_1")
    (note,) = open_checkpoint(folder).notes
    assert note.params == {"rank": 0, "file": "src.ckpt", "expected": 2}
    (folder / "strategy" / "src.ckpt").write_bytes(b"\x0a\x0b")
    assert open_checkpoint(folder).notes == ()


def test_two_directories_of_one_rank_are_refused(tmp_path):
    """Neither is taken for the other."""
    for name in ("rank_0", "rank0", "rank_1"):
        write_ckpt(tmp_path / name / "net.ckpt", {"w": WHOLE})
    with pytest.raises(CheckpointError, match=r"two directories of rank 0, rank_?0 and rank_?0,"):
        open_checkpoint(tmp_path)


def test_of_several_steps_the_last_that_all_ranks_have_is_taken(tmp_path):
    """And said; where names do not tell, nothing is guessed."""
    for rank, last in ((0, 9), (1, 8)):
        for step in range(7, last + 1):
            arrays = {"w": np.float32([step])}
            write_ckpt(tmp_path / f"rank_{rank}" / f"net_rank_{rank}-1_{step}.ckpt", arrays)
    found = open_checkpoint(tmp_path)
    assert not found.whole
    assert [elements(found, rank=rank) for rank in (0, 1)] == [[8], [8]]
    assert found.notes[0].params == {"epoch": 1, "step": 8, "others": 1}
    write_ckpt(tmp_path / "rank_0" / "best.ckpt", {"w": np.float32([1])})
    with pytest.raises(CheckpointError, match="several checkpoints"):
        open_checkpoint(tmp_path)
