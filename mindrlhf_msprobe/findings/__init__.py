"""What is concluded of runs: comparisons, checks, replays. All that report/ knows of them.

A comparison's are here by name; `checkpoints`, `health`, `mismatch`, `accuracy` and `replayed` have
those of the other commands, under names of their own.
"""

from __future__ import annotations

from mindrlhf_msprobe.findings.comparison import (
    Chosen,
    Comparison,
    CoverageGap,
    Earlier,
    NonFinite,
    RuleUse,
    Stopped,
    Suspicious,
    Verdict,
    gathered,
)
from mindrlhf_msprobe.findings.divergence import (
    Birth,
    Change,
    CheckFirst,
    Culprit,
    Divergence,
    Inside,
    Occasion,
    RankDivergence,
    Some,
    Spread,
)
from mindrlhf_msprobe.findings.kept import (
    FindingsByTable,
    KeptFindings,
    PackedFindings,
    TableName,
    table_of,
)
from mindrlhf_msprobe.findings.record import Agreement, Finding, Metrics, Side
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
    Cause,
    CulpritCode,
    Keyword,
    Nearness,
    Outcome,
    Relation,
    Status,
)

__all__ = [
    "ANOTHER_WITHHELD",
    "KEY_DATA_ONLY",
    "OTHER_ON_EACH_RANK",
    "SCHEMA",
    "STAND_INS",
    "TOOL",
    "Agreement",
    "Birth",
    "Cause",
    "Change",
    "CheckFirst",
    "Chosen",
    "Comparison",
    "CoverageGap",
    "Culprit",
    "CulpritCode",
    "Difference",
    "Divergence",
    "Earlier",
    "Finding",
    "FindingsByTable",
    "Inside",
    "KeptFindings",
    "Keyword",
    "Metrics",
    "Nearness",
    "NonFinite",
    "Occasion",
    "Outcome",
    "PackedFindings",
    "Preflight",
    "RankDivergence",
    "Relation",
    "RuleUse",
    "Side",
    "Some",
    "Spread",
    "Status",
    "Stopped",
    "Suspicious",
    "TableName",
    "Verdict",
    "Weights",
    "gathered",
    "table_of",
]
