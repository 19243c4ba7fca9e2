"""Every number of a training run in one place."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from .episode import PAPER, Rules
from .files import UserError


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

    def record(self) -> dict[str, Any]:
        """As plain JSON values, for a run folder."""
        return asdict(self)


PRESETS = {
    "mini": Preset("mini"),
    "quick": replace(Preset("mini"), name="quick", popsize=34, generations=3, validation_per_family=10),
}


def preset(name: str) -> Preset:
    """A preset by name. Raises: UserError for an unknown one."""
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}: choose from {', '.join(PRESETS)}.")
    return PRESETS[name]
