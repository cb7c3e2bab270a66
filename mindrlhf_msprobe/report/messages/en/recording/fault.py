"""What went wrong while recording, as an error says it."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

TEXTS: dict[str, Text] = {
    # Files of compiled graphs.
    "folder_full": (
        "what a compiled graph wrote was removed unread: {size} of it (buffer_mb) waited to be "
        "read. Record fewer cells, phases or tokens at a time, choose task: statistics, or raise "
        "buffer_mb"
    ),
    "cut_short": (
        "{file}, which a compiled graph wrote, ends after {size} bytes, as on a disk that is full"
    ),
    "no_files": (
        "compiled graphs have written nothing for {waited:.0f} s, and their last files are "
        "missing, as on a disk that is full"
    ),
    # What came too late, or is not known.
    "late": "it came more than {most} calls late",
    "step_ended": "it came when step {step}, to which it belongs, had ended",
    "unseen": "{name} ran before it was seen; it is recorded from its next call on",
    "second_order": "gradients that are differentiated again are not recorded",
    "changed": (
        "{parameter} changed in a few elements; which of its calls ran with which is not known"
    ),
    # Values.
    "no_numbers": "dtype {dtype} holds no numbers",
    "objects": "dtype {dtype} holds Python objects, which are never pickled",
    "statistics": "statistics of shape {shape}; expected {expected}",
    # The directory.
    "hold_lost": "the dump_path is no longer the directory that was claimed ({loss})",
    "place_replaced": "the directory {place} was replaced while it was recorded into",
    "place_removed": "the directory {place} was removed while it was recorded into",
    "removed": "{directory} was removed while it was written",
    "removed_before_end": "{directory} was removed before the step ended",
    "symbolic_link": "a symbolic link in a run is not followed",
    "of_others": "a file of others stands there",
    "process_ended": "it ended with exit code {code}",
    "names_taken": "all temporary names of it are taken",
    "shared_elements": "the elements it shares could not be stored: {why}",
}
