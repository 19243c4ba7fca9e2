"""What a run is trained and validated on: the embedded families, or the paper's benchmarks (lessons 07 and 11)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .episode import Grade, exact
from .pool import Pool
from .presets import Preset
from .tasks import FAMILIES, Question, question_set, questions


@dataclass(frozen=True)
class TaskSet:
    """Training questions by family, validation questions, how an answer is graded, and held-out questions.

    train: a list for each family, of any lengths; a generation draws from the families in turn. validation: any
    number, none for no validation. test(per_family, seed, families): as many of each; None: all families of the
    training. grade: async (question, answer or None) -> the reward from 0 to 1, or None if it cannot be told: such an
    episode is left out, not scored 0.
    """

    train: Sequence[Sequence[Question]]
    validation: Sequence[Question]
    test: Callable[[int, int, Sequence[str] | None], list[Question]]
    grade: Grade = exact


def embedded_tasks(preset: Preset) -> TaskSet:
    """The four families of the embedded world, as many questions as the preset says."""
    n = preset.validation_per_family
    return TaskSet(
        [questions(f, "train", preset.train_per_family, 0) for f in FAMILIES],
        [q for f in FAMILIES for q in questions(f, "validation", n, 0)] if n else [],
        _held_out,
    )


def _held_out(per_family: int, seed: int, families: Sequence[str] | None = None) -> list[Question]:
    known = list(dict.fromkeys(families or FAMILIES))
    if "know" in known:  # the smallest family first: it says at once that there are fewer
        question_set("test", per_family, seed, ["know"])
    return question_set("test", per_family, seed, known)


def benchmark_sets(preset: Preset, root: Path | None, judges: Callable[[], Pool]) -> TaskSet:
    """The preset's benchmarks: 240 training items of each (released run), validation items that are others.

    root: a folder with a folder for each benchmark, in place of the hub. judges: the pool whose first agent judges
    MT-Bench.
    Raises: UserError for an unknown name, or if the files are out of reach.
    """
    from .benchmarks import grader, load

    def place(name: str) -> Path | None:
        return None if root is None else Path(root) / name

    train, validation = [], []
    names = preset.tasks.split(",")
    for name in names:
        n = preset.train_per_family
        items = load(name, "train", n + preset.validation_per_family, root=place(name))
        train.append(items[:n])
        validation += items[n:]

    def held_out(per_family: int, seed: int, families: Sequence[str] | None = None) -> list:
        return [q for name in families or names for q in load(name, "test", per_family, seed, place(name))]

    async def grade(question: Question, answer: str | None) -> float | None:
        return await grader(question.family, judges())(question, answer)

    return TaskSet(train, validation, held_out, grade)
