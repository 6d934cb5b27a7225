"""Files about single steps of a run: traces of torch.profiler, and snapshots of the CUDA allocator."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Max, QuerySet

from dashboard.runs.models import ProfilePart, Run

Kind = ProfilePart.Kind


@dataclass(frozen=True)
class Profile:
    """The file of one rank's step. `whole` once every piece has arrived; `too_large` if it was not kept."""

    step: int
    rank: int
    size: int
    whole: bool
    too_large: bool


@dataclass(frozen=True)
class Step:
    """A step with the files of its ranks."""

    number: int
    ranks: list[Profile]

    @property
    def openable(self) -> bool:
        return any(rank.whole for rank in self.ranks)


def listed(run: Run, kind: Kind = Kind.PROFILE) -> list[Step]:
    """Steps with files of that kind, of the newest attempt that has any, ascending."""
    rows = _of(run, kind).order_by().values("step", "rank").annotate(have=Count("id"), of=Max("of"), size=Max("size"))
    found = [
        Profile(row["step"], row["rank"], row["size"], 0 < row["of"] == row["have"], row["of"] == 0)
        for row in rows.order_by("step", "rank")
    ]
    numbers = sorted({profile.step for profile in found})
    return [Step(number, [profile for profile in found if profile.step == number]) for number in numbers]


def data(run: Run, step: int, rank: int, kind: Kind = Kind.PROFILE) -> bytes | None:
    """The file, gzipped; None if there is none, or not all of it yet."""
    pieces = list(_of(run, kind).filter(step=step, rank=rank).order_by("part"))
    if not pieces or len(pieces) != pieces[0].of:
        return None
    return b"".join(bytes(piece.data) for piece in pieces)


def _of(run: Run, kind: Kind) -> QuerySet[ProfilePart]:
    every = ProfilePart.objects.filter(attempt__run=run, kind=kind)
    newest = every.order_by("-attempt__number").values_list("attempt_id", flat=True).first()
    return every.filter(attempt=newest) if newest is not None else every
