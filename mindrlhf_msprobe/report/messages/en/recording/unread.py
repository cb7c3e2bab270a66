"""What of a run cannot be read, as the rest of a sentence on a file, in English."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages.en.words import some


def _damaged_lines(count: int, lines: Sequence[tuple[int, str]] = ()) -> str:
    """Say which lines of records.jsonl are damaged: each is one entry, which it may still name."""
    said = f"{count} damaged line(s) in the journal"
    named = [f"line {number} ({entry or 'its name is lost, too'})" for number, entry in lines]
    if not named:
        return said
    return f"{said}, each of one entry that is lost: {some(named, count - len(named))}"


def _no_dump_files(count: int, files: Sequence[str]) -> str:
    """Name files that are of no known form."""
    return f"holds {count} file(s) that MindSpore's Dump does not write: " + some(
        files, count - len(files)
    )


def _no_columns(columns: Sequence[str]) -> str:
    """Name the columns that a statistic.csv lacks."""
    return f"is not a statistic.csv of MindSpore's Dump: it has no column {', '.join(columns)}"


TEXTS = {
    "at": "{path}: {why}",
    "of_file": "{file} {why}",
    "of_file_colon": "{file}: {why}",
    # any file
    "failed": "cannot be read: {why}",
    "raised": "{error}: {why}",
    "unlisted": "cannot be listed: {why}",
    "nested": "is nested too deeply",
    "link_leaves": "is a symbolic link that leaves the run's directory",
    "a_link_leaves": "a symbolic link leaves the run's directory",
    "no_file": "is not a regular file",
    "too_large": "has {size} bytes, more than the {most} that are read",
    "no_json": "is not valid JSON: {why}",
    "no_object": "is not a JSON object",
    "missing": "is missing",
    # elements
    "another_file": "another file took its place while it was compared",
    "file_missing": "the file is missing",
    "too_much_data": "holds {size} bytes of data, more than the {most} that are read",
    "cut_short": "is cut short: its header promises {size} bytes of data, {present} are there",
    "not_mapped": "cannot be mapped as shape {shape}: {why}",
    "no_npy": "has no valid .npy header: it does not begin as one",
    "npy_version": "has .npy format version {version}, expected 1.0 or 2.0",
    "npy_cut_short": "has no valid .npy header: it is cut short",
    "npy_header": "has no valid .npy header: {why}",
    "claimed_shape": "claims the shape {shape}",
    "framework": "was made on {name}, which is not known; known are {known}",
    "other_form": (
        "is of a version that is not known: its entries hold {found}, and none of {known}"
    ),
    "no_pt": "is no .pt file of one tensor, as torch.save writes it ({why})",
    "pt_head": "has more than {most} beside its elements, which a .pt file of one tensor has not",
    "pt_compressed": "is compressed or encrypted; torch.save stores elements as they are",
    "pt_order": "was saved on a machine with another byte order",
    "pt_pickle": "holds {what}, expected one tensor as torch.save writes it; nothing is unpickled",
    "pickled": "holds pickled Python objects, which are never loaded",
    "held_dtype": "holds the dtype {dtype}",
    "statistics_alone": "only its statistics were recorded (task: tensor stores elements)",
    "other_shape": "holds shape {held}, but {recorded} was recorded",
    "other_dtype": "holds {held}, but {recorded} was recorded",
    "other_signs": "holds {held} as signs, expected uint8, one bit for each of {size} elements",
    "part_head": "does not begin as a file of sketches does",
    "part_cut_short": "is cut short: the sketch ends at byte {end}, the file at {present}",
    "no_sketch": "no sketch of it was recorded (task: sketch records them)",
    "sketch_place": "says of its sketch {shown}, expected its algorithm, block and offset",
    "sketch_algorithm": "has a sketch of the algorithm {held!r}, which this version cannot read",
    "sketch_block": "has a sketch with blocks of {held} columns, expected 64, or 0",
    "sketch_offset": "says that its sketch lies at byte {offset}, where none can be",
    "of_pytorch": "is a file of PyTorch, which only PyTorch can read; save it as .npy",
    "no_signs": "holds {held}, expected bool: the signs of a gradient",
    "outside": "its file {file!r} lies outside the run's directory, so it was not opened",
    "not_stored": "its elements could not be stored: {why}",
    "sketch_not_stored": "its sketch could not be stored: {why}",
    "not_handed_over": "the graph did not hand it over",
    "first_space": "{file} does not say whether it begins with a space",
    # descriptions
    "too_many_values": "it holds more than {most} values",
    "long_name_of_value": "the name of a value in it has {length} characters",
    "long_name": "its name has {length} characters",
    "shape": "shape is {shown}, expected a list of sizes",
    "statistic": "a statistic is {shown}, expected a number",
    "value": "a value is {shown}, expected a number or a text",
    "deep_values": "values are nested more than {most} deep",
    "description": "expected a description of a value, found {shown}",
    "no_data": "does not describe a save: it has no `data`",
    "no_entries": "{file} has no entries under 'data'",
    "no_stacks": "has no pairs of entries and call stacks",
    # dumps of MindSpore itself, event files of MindFormers
    "no_dump": "holds neither tensors nor a statistic.csv of MindSpore's Dump",
    "no_dump_files": _no_dump_files,
    "no_columns": _no_columns,
    "no_csv": "is not valid CSV: {why}",
    "damaged_rows": "{count} damaged row(s), each of one tensor that is lost",
    "event_cut_short": "is cut short in event {number}: what stood behind it is lost",
    "event_damaged": "event {number} is damaged: it and what stands behind it cannot be read",
    # runs
    "no_manifest": "is not a manifest: expected a JSON object",
    "not_whole": (
        "is not a whole manifest: it does not say, or not as this tool does, its {fields}"
    ),
    "same_place": "another directory is the same step and rank",
    "same_save": "another directory is the same step, rank and micro-step",
    "damaged_lines": _damaged_lines,
    "fewer_entries": "holds {count} of the {listed} entries that the run's {manifest} lists",
    "no_times": "its line of step {step} does not hold the times of one",
    "many_steps": "holds the times of more than {most} steps",
    "long_line": "holds a line of more than {most}",
    "more_entries": "{count} more entries that cannot be read",
    "more_records": "{count} more records that cannot be read",
    "no_journal": (
        "is missing: read from the {file} beside it, which does not say when, or for which token, "
        "entries ran"
    ),
    "manifest_missing": "is missing: it says what was recorded, and what was lost",
    "listed": "is missing: {manifest} lists it",
    "entries_missing": "is missing: {manifest} lists entries there",
    "saves_missing": "is missing: {manifest} lists saves there",
    "steps_of_entries_missing": (
        "is missing, as are those up to step {last}: {manifest} lists entries there"
    ),
    "steps_of_saves_missing": (
        "is missing, as are those up to step {last}: {manifest} lists saves there"
    ),
    "fewer_saves": "holds {count} of the {listed} saves that {manifest} lists",
}
