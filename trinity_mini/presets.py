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
    popsize: int = 34  # lambda of the released run, so that 34 x 16 x 60 is its budget; 0: ceil(4 + 3 ln n)
    episodes_per_candidate: int = 16  # m_CMA (paper section 3)
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
    "quick": replace(Preset("mini"), name="quick", generations=3, episodes_per_candidate=8, validation_per_family=10),
}


def preset(name: str) -> Preset:
    """A preset by name. Raises: UserError for an unknown one."""
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}: choose from {', '.join(PRESETS)}.")
    return PRESETS[name]
