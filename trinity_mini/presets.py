"""Every number of a training run in one place."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from .episode import PAPER, Rules
from .files import UserError

EMBEDDED = "embedded"


@dataclass(frozen=True)
class Preset:
    """A training run but for its seed. Numbers without a source are ours, chosen in pilot runs."""

    name: str
    head: str = "linear"
    matrices: str = "paper"  # SVF on the seven matrices of the second-to-last layer (paper section 2)
    selection: str = "sample"
    rules: Rules = PAPER
    popsize: int = 136  # lambda; 0: the paper's ceil(4 + 3 ln n)
    episodes_per_candidate: int = 4  # m_CMA: one of each family. 136 x 4 is the budget of the released 34 x 16
    generations: int = 60  # T (paper section 3)
    sigma0: float = 2.0
    svf_scale: float = 0.004  # standard deviation of an SVF coordinate relative to one of the head
    common_questions: bool = True  # all candidates of a generation meet the same questions
    common_draws: bool = True  # ... and the same uniform numbers for the draws
    train_per_family: int = 240  # 960 training questions (released run)
    validate_every: int = 5
    validation_per_family: int = 50
    slm: str = EMBEDDED  # the coordinator's language model: "embedded", "smollm2", a name on the hub or a folder
    pool: str = EMBEDDED  # "embedded" or a pool file
    tasks: str = EMBEDDED  # "embedded" or names of benchmarks with commas between

    def record(self) -> dict[str, Any]:
        """As plain JSON values, for a run folder; what is embedded goes without saying."""
        return {k: v for k, v in asdict(self).items() if k not in ("slm", "pool", "tasks") or v != EMBEDDED}


MINI = Preset("mini")
# lambda = ceil(4 + 3 ln n) and m_CMA = 16 (paper section 3); 300 validation questions (released run).
FULL = replace(MINI, popsize=0, episodes_per_candidate=16, validation_per_family=75, slm="Qwen/Qwen3-0.6B")
BENCHMARKS = "math500,mmlu,rlpr,livecodebench"  # the paper's four
PRESETS = {
    "mini": MINI,
    "quick": replace(MINI, name="quick", popsize=34, generations=3, validation_per_family=10),
    # A real small model beside the embedded agents: start it first, `python -m trinity_mini serve`.
    "local": replace(
        MINI, name="local", popsize=34, generations=12, validation_per_family=10, pool="data/pools/local.toml"
    ),
    "laptop": replace(MINI, name="laptop", popsize=68, validation_per_family=25, slm="smollm2"),
    "gpu": replace(FULL, name="gpu", matrices="released", validation_per_family=50),  # know holds 64
    "gpu-open": replace(FULL, name="gpu-open", matrices="released", pool="data/pools/open.toml", tasks=BENCHMARKS),
    "paper": replace(FULL, name="paper", matrices="released", pool="data/pools/paper.toml", tasks=BENCHMARKS),
    "paper-full-power": replace(
        FULL, name="paper-full-power", matrices="released", pool="data/pools/paper-full-power.toml", tasks=BENCHMARKS
    ),
}


def preset(name: str) -> Preset:
    """A preset by name. Raises: UserError for an unknown one."""
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}: choose from {', '.join(PRESETS)}.")
    return PRESETS[name]
