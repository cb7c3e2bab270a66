"""What is concluded of runs: comparisons, checks, replays. All that report/ knows of them.

A comparison's are here by name; `checkpoints`, `health`, `mismatch` and `accuracy` have those of
the other commands, under names of their own.
"""

from __future__ import annotations

from mindrlhf_msprobe.findings.comparison import (
    Change,
    CheckFirst,
    Chosen,
    Comparison,
    CoverageGap,
    Culprit,
    Divergence,
    Earlier,
    ErrorOrigin,
    Inside,
    NonFinite,
    NotFinite,
    Occasion,
    RankDivergence,
    RuleUse,
    Some,
    Spread,
    Stopped,
    Suspicious,
    Verdict,
    gathered,
)
from mindrlhf_msprobe.findings.record import (
    Agreement,
    Finding,
    FindingsByTable,
    KeptFindings,
    Metrics,
    PackedFindings,
    Side,
    TableName,
    table_of,
)
from mindrlhf_msprobe.findings.settings import (
    ANOTHER_WITHHELD,
    OTHER_ON_EACH_RANK,
    STAND_INS,
    Difference,
    Preflight,
    Weights,
)
from mindrlhf_msprobe.findings.words import (
    KEY_DATA_ONLY,
    SCHEMA,
    TOOL,
    VERDICT_FILE,
    Cause,
    CulpritCode,
    Keyword,
    Nearness,
    Outcome,
    Relation,
    Status,
)
