"""Tensors saved by PyTorch: real ones are read, hostile ones refused, and nothing is unpickled."""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import torch_llama

from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.arrays.pt import open_pt

#: One file for each dtype and form, made by `python tests/helpers/torch_llama.py --samples`.
SAMPLES = Path(torch_llama.__file__).parent / "data" / "torch" / "samples"


@pytest.mark.parametrize("file", sorted(SAMPLES.glob("*.pt")), ids=lambda file: file.stem)
def test_what_torch_saved_is_read(file):
    array, dtype = open_pt(file)
    expected = torch_llama.samples()[file.stem]
    assert dtype.lower() == file.stem.partition("_")[0]
    np.testing.assert_array_equal(array, expected)
    assert not array.flags.writeable or file.stem.startswith("bfloat16")


def test_all_dtypes_have_a_sample():
    assert {file.stem for file in SAMPLES.glob("*.pt")} == {*torch_llama.samples()}


def saved(path: Path, content: bytes, elements: bytes = bytes(64), **how: int) -> Path:
    with zipfile.ZipFile(path, "w", **how) as archive:
        archive.writestr("x/data.pkl", content)
        archive.writestr("x/data/0", elements)
    return path


def tensor(shape: bytes = b"K\x04", strides: bytes = b"K\x01", count: int = 16) -> bytes:
    """Return the pickle of a float32 tensor of one dimension."""
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storage"
        b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK"
        + bytes([count])
        + b"tQK\x00"
        b"" + shape + b"\x85" + strides + b"\x85\x89ccollections\nOrderedDict\n)RtR."
    )


def test_the_pickle_made_here_is_one_that_is_read(tmp_path):
    assert open_pt(saved(tmp_path / "a.pt", tensor()))[0].shape == (4,)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (pickle.dumps(Evil(), 2), "mkdir"),
        (pickle.dumps(Evil(), 4), "made|FRAME"),
        (pickle.dumps({"a": 1}, 2), "EMPTY_DICT"),
        (pickle.dumps("text", 2), "str"),
        (b"\x80\x02ctorch\nload\n.", "torch.load"),
        (b"\x80\x02ccollections\nOrderedDict\n)R.", "dict"),
        (b"\x80\x02N.", "NONE"),
        (b"", "cut|exhausted|end"),
        (b"\x80\x02K\x01" * 20_000, "int|BININT"),
        (tensor()[:-1], "exhausted|STOP"),
        (b"\x80\x02t.", "StopIteration|IndexError|holds"),
        (tensor(shape=b"K\x20"), "shorter|cut short|bytes"),
        (tensor(shape=b"J\xff\xff\xff\x7f", strides=b"K\x00"), "short|bytes"),
        (tensor(strides=b"J\xff\xff\xff\xff"), "shape"),
        (tensor(strides=b"K\x06"), "short|bytes"),
    ],
)
def test_anything_else_than_a_tensor_is_refused(tmp_path, monkeypatch, content, what):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArrayFileError, match=what):
        open_pt(saved(tmp_path / "a.pt", content))
    assert not (tmp_path / "made").exists()


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = saved(tmp_path / "a.pt", tensor(), bytes(1 << 24), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ArrayFileError, match="compressed"):
        open_pt(path)
    many = tmp_path / "many.pt"
    with zipfile.ZipFile(many, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number:060}", b"")
    with pytest.raises(ArrayFileError, match="1 MiB"):
        open_pt(many)


def test_a_file_that_was_cut_or_changed_is_refused_at_every_byte(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x/data.pkl", tensor(count=4))
        archive.writestr("x/data/0", bytes(16))
    whole, path = stream.getvalue(), tmp_path / "a.pt"
    for size in range(0, len(whole), 3):
        path.write_bytes(whole[:size])
        with pytest.raises(ArrayFileError):
            open_pt(path)
    for at in range(0, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            array, _ = open_pt(path)
        except ArrayFileError:
            continue
        assert array.size <= 4


def test_places_that_lead_out_of_the_file_are_refused(tmp_path):
    path = saved(tmp_path / "a.pt", tensor())
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02") + 42  # where the directory says that data/0 begins
    for place in (len(content) + 10, len(content) - 5, 3):
        struct.pack_into("<I", content, at, place)
        path.write_bytes(content)
        with pytest.raises(ArrayFileError):
            open_pt(path)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    for path in (tmp_path / "pipe.pt", tmp_path, tmp_path / "none.pt"):
        with pytest.raises(ArrayFileError):
            open_pt(path)


def test_another_byte_order_is_said(tmp_path):
    path = saved(tmp_path / "a.pt", tensor())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x/byteorder", "big")
    with pytest.raises(ArrayFileError, match="byte order"):
        open_pt(path)
