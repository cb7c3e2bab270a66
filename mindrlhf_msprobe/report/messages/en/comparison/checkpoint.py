"""What is said of checkpoints that are read and compared, in English."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import counted, some


def _several(path: str, names: Sequence[str]) -> str:
    return (
        f"{path} holds several checkpoints ({', '.join(names)}, …), and nothing says which one is "
        f"meant; give the path of one file."
    )


def _only_pickles(path: str, names: Sequence[str]) -> str:
    return (
        f"{path} holds no checkpoint that can be read, but {', '.join(names)}: pickles of PyTorch, "
        f"which are never loaded, as loading one runs its code. Save them as safetensors."
    )


def _unlisted(names: Sequence[str], count: int) -> str:
    what = some(list(names), count - len(names))
    return f"its files hold {counted(count, 'parameter')} that its index does not list: {what}"


def _in_another_file(names: Sequence[str], count: int, file: str, said: str) -> str:
    what = some(list(names), count - len(names))
    return (
        f"its index names the wrong file of {counted(count, 'parameter')}: {what}; "
        f"{names[0]} is in {file}, not in {said}. They were read where they are"
    )


def _last_step(epoch: int, step: int, others: int) -> str:
    older = f" ({counted(others, 'earlier one')} left)" if others else ""
    return (
        f"of several checkpoints the last one that all ranks have, epoch {epoch} step {step}{older}"
    )


def _of_role(role: str, others: Sequence[str], step: int | None) -> str:
    when = "as first recorded" if step is None else f"of step {step}"
    said = f"the parameters of the {role}, {when}"
    if others:
        said += f"; for {', '.join(others)} give the directory of one of its phases"
    return said


def _below(a: str, b: str) -> str:
    sides = [f"{prefix!r} of {side}" for side, prefix in (("A", a), ("B", b)) if prefix]
    return f"prefix {' and '.join(sides)} taken off"


def _some(count: int, names: Sequence[str]) -> str:
    return some(list(names), count - len(names))


def _only_in(side: str, count: int, names: Sequence[str]) -> str:
    return f"{counted(count, 'parameter')} of {side} alone: {_some(count, names)}"


def _optimizer_only_in(side: str, count: int, names: Sequence[str]) -> str:
    other = "B" if side == "A" else "A"
    return (
        f"the optimizer's state is in {side} alone ({counted(count, 'tensor')}: "
        f"{_some(count, names)}), {other} has none"
    )


def _texts_only_in(side: str, count: int, names: Sequence[str]) -> str:
    what = "entry that is no tensor" if count == 1 else "entries that are no tensors"
    return f"{count} {what} in {side} alone: {_some(count, names)}"


def _perhaps_cut(side: str, count: int) -> str:
    return (
        f"{side} may be cut short: it lacks {counted(count, 'parameter')}, and ends between two "
        f"entries, where a .ckpt that was not saved with crc_check=True shows no cut"
    )


def _differing(count: int) -> str:
    return f"{counted(count, 'parameter')} {'differs' if count == 1 else 'differ'}:"


def _only(side: str) -> Text:
    def text(count: int) -> str:
        return f"{counted(count, 'parameter')} in {side} alone:"

    return text


def _suspicious(count: int) -> str:
    return f"{counted(count, 'parameter')} that agree{'s' if count == 1 else ''}, suspicious:"


def _headline_diverged(compared: int, different: int) -> str:
    return f"DIVERGED: {different} of {counted(compared, 'parameter')} do not agree."


TEXTS: dict[str, Text] = {
    # a file
    "of_file": "{path}: {why}",
    "none": (
        "{path} does not exist; expected a .ckpt, a .safetensors, or a directory with checkpoints."
    ),
    "no_file": "is no regular file",
    "changed": "was changed or replaced while it was read",
    "ends": "ends at byte {present}, expected {end}",
    "empty": "is empty: 0 bytes, expected a checkpoint",
    # MindSpore's
    "zip": (
        "is a zip archive, as torch.save writes it (or numpy): a pickle inside, which is never "
        "loaded, as loading one runs its code. Save it as safetensors"
    ),
    "pickle": (
        "is a pickle, which is never loaded, as loading one runs its code. Save it as safetensors"
    ),
    "gzip": "is compressed with gzip; expected a checkpoint of MindSpore. Unpack it first",
    "compressed": "is compressed; expected a .ckpt of MindSpore or safetensors. Unpack it first",
    "git_lfs": (
        "is a pointer of Git LFS: the text that stands for the file until it is fetched. Run "
        "`git lfs pull` where it was cloned"
    ),
    "json": (
        "is JSON; expected a .ckpt of MindSpore or safetensors. The index of safetensors is read "
        "by a name that ends with .safetensors.index.json"
    ),
    "gguf": "is a GGUF file (llama.cpp); expected a .ckpt of MindSpore or safetensors",
    "hdf5": "is an HDF5 file; expected a .ckpt of MindSpore or safetensors",
    "encrypted": (
        "is an encrypted checkpoint (enc_key), which is not read; save it without encryption"
    ),
    "no_ckpt": "is no checkpoint of MindSpore, and no safetensors: it begins with {head}",
    "field": (
        "is no whole checkpoint of MindSpore: at byte {at} stands field {number} of wire type "
        "{kind}, which none has there"
    ),
    "field_cut_short": (
        "is cut short: at byte {at} a part of {size} bytes begins, {present} are there. Copy or "
        "save it again"
    ),
    "number": "is cut short or damaged: no whole number at byte {at}",
    "too_many": "holds more than {most} parameters, or slices of them",
    "long_name": "is damaged: at byte {at} begins a name of {length} bytes",
    "no_tag": "is damaged: the entry at byte {at} has no name or no value",
    "no_content": "is damaged: the tensor at byte {at} has no content",
    "dimensions": "is damaged: the tensor at byte {at} has more than {most} axes",
    "crc": (
        "is damaged: the CRC-32 that it holds is {stored}, that of its content {found}. Copy or "
        "save it again"
    ),
    "map": "is a MapTensor, which is not compared",
    "twice": "stands in the file twice, not as slices of one",
    "unlike_slices": "its slices have unlike dtypes or shapes",
    "dtype": "holds {dtype}, which cannot be compared",
    "size": "its shape and dtype need {size} bytes, {present} are there",
    # safetensors
    "no_safetensors": "is no safetensors file: it does not begin with a header's length and a {{",
    "header_long": "claims a header of {size} bytes; at most {most} are read",
    "header_cut_short": "is cut short: its header has {size} bytes, {present} are there",
    "header": "has a header that is not valid JSON: {why}",
    "name_twice": "has a header in which {name!r} stands twice",
    "entry": "says of {name!r} {shown}, expected dtype, shape and two data_offsets",
    "entry_size": "gives {name!r} {size} bytes, not those of shape {shape} and dtype {dtype}",
    "outside": (
        "says that {name!r} lies from byte {begin} to {end} of its data, of which there are "
        "{present}: it is cut short, or damaged"
    ),
    "overlap": "lets {name!r} (bytes {begin} to {end} of its data) lie over {before!r}",
    "hole": "leaves bytes {at} to {begin} of its data to no parameter, before {name!r}",
    "rest": "has {present} bytes of data, its header speaks of {size}",
    "index": "is no index of safetensors: expected weight_map, with the file of each parameter",
    "leaves": "names the file {name!r}, which does not lie beside it; nothing else is opened",
    "in_two_files": "holds {name!r}, as {other} does; expected each parameter once",
    "not_in_file": "the index says it is in {file}, which does not hold it",
    "unlisted": _unlisted,
    "in_another_file": _in_another_file,
    # directories
    "link_leaves": "is a symbolic link that leaves the directory, so it is not opened",
    "several": _several,
    "files_missing": (
        "{path} holds not all of the {count} files {name}-00001-of-{count:05}.safetensors, …: "
        "number {missing} is missing. Copy it, too."
    ),
    "none_there": (
        "{path} holds no checkpoint; expected a .ckpt, .safetensors, or directories rank_0, "
        "rank_1, … with them, or a run that recorded parameters."
    ),
    "only_pickles": _only_pickles,
    "no_common_step": "{path}: its ranks have no checkpoint of the same epoch and step.",
    "last_step": _last_step,
    # several ranks
    "by_strategy": "{ranks} ranks put together by {file}",
    "no_strategy": "is no strategy file of MindSpore: it says of no parameter how it is cut",
    "strategy_json": "is no strategy file of MindSpore: {why}",
    "two_strategies": "says otherwise how {name!r} is cut than another strategy file of its stage",
    "other_strategy": (
        "{path}: its strategy ({file}) is of {expected} ranks (stages {stages}), its directories "
        "are of ranks {ranks}. Give the strategy files of all stages, and all ranks."
    ),
    "layout": "its strategy says how it is cut in a way that is not understood",
    "uneven": "its strategy cuts it unevenly, which is not supported",
    "unlike_ranks": "ranks hold it in unlike dtypes or shapes",
    "other_axes": "its strategy is of another number of axes",
    "shard_missing": "no rank holds the part that rank {ranks} should hold",
    "copies_differ": "the ranks that should hold the same of {name!r} do not",
    "other_ranks": (
        "A has ranks {a}, B ranks {b}, and nothing says how their parameters are cut. Put the "
        "strategy files of MindSpore into a directory strategy/ beside rank_0."
    ),
    "one_rank": (
        "only rank {rank} is there, and {file} is of {expected} ranks: what has another shape may "
        "be a part. If it is, put the directories of the other ranks beside it"
    ),
    "rank_twice": lambda path, rank, names: (
        f"{path} has two directories of rank {rank}, {' and '.join(names)}, and nothing says which "
        f"one is meant; move one away."
    ),
    "parts": (
        "{path} holds parts of parameters for {ranks} ranks ({name!r} does not fit the other "
        "side), and no strategy file says how they are cut. Put those of MindSpore into a "
        "directory strategy/ beside rank_0, or save the checkpoint whole."
    ),
    # a run
    "no_parameters": (
        "{path} recorded no parameters; record with parameters: true and a phase switched on."
    ),
    "no_parameters_in_step": "{path} recorded no parameters in step {step}.",
    "of_role": _of_role,
    "two_runs": "{a} and {b} are runs; compare_runs compares them.",
    # what is asked for
    "same": "{path} is given as {first} and as {second}; expected two checkpoints.",
    "two_to_one": (
        "{first!r} and {second!r} of {side} both come to the name {name!r}; correct the mapping."
    ),
    "option": "{option} is for runs, not for checkpoints; leave it out.",
    "one_step": "--steps is {value!r}; expected one step of the run that is compared.",
    # names
    "below": _below,
    "unlike_names": (
        "most names have no partner on the other side; --mapping says what is called how"
    ),
    # notes
    "transposed": lambda to: (
        "the same transposed" + (f": equal once rounded to {to}" if to else ": all elements equal")
    ),
    "rounded": "{a} against {b}: equal once rounded to {to}",
    "no_noise": "no repetition has its elements in this dtype and shape: its noise is not known",
    # coverage
    "perhaps_cut": _perhaps_cut,
    "left_out": "{count} parameter(s) left out by --include and --exclude",
    "only_in": _only_in,
    "optimizer_only_in": _optimizer_only_in,
    "texts_only_in": _texts_only_in,
    "of_side": "{side}: {what}",
    # the answer
    "headline_identical": "IDENTICAL: all {compared} parameters are equal.",
    "headline_within_tolerance": (
        "WITHIN TOLERANCE: all {compared} parameters agree, not all of them bit for bit."
    ),
    "headline_diverged": _headline_diverged,
    "headline_incomparable": (
        "INCOMPARABLE: no parameter of A is in B. If they are called otherwise, use --mapping."
    ),
    "no_fused": "the pattern {pattern!r} of a fused weight is the cell of no parameter of A or B.",
    "no_part": "{name} is made of several parameters by the mapping; the other side has no {part}.",
    "parts_unlike": (
        "{name} has the shape {shape}, which its parts do not make up in {groups} group(s): "
        "{parts}. Expected equal dtypes, rows that sum up and can be divided into the groups."
    ),
    "side_a": "A (baseline): {path} ({kind})",
    "side_b": "B (under test): {path} ({kind})",
    "differing": _differing,
    "only_in_a": _only("A"),
    "only_in_b": _only("B"),
    "suspicious": _suspicious,
    "of_rank": "{name} (rank {rank})",
    "apart": (
        "cosine {cosine}, l2 {l2:.3g} (relative {relative:.3g}), max abs {largest:.3g}, "
        "{percent:.3g} % of {elements} elements differ"
    ),
    "no_cosine": "none",
    "more": "  … {count} more",
    "optimizer": "State of optimizers: {count} tensors, {agreeing} agree",
    "coverage": "Not compared: {what}",
    "remark": "Note: {what}",
    "rule": "Tolerance: {rule}: {records} parameters, {passed} agree only by it",
    "tables": "Tables: {output}: {tables}, verdict.json",
    "summary": "{elements} elements compared in {seconds:.1f} s: {counts}",
}
