"""Weight versions by micro-batch and stage in schedules that never flush: one row a stage, one cell a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.theme import var
from parallel_core.analysis.quantities import plural_text, significant
from parallel_core.analysis.versions import Use

ROW_PX = 30
NARROW = 6
"""The most micro-batches on a phone; with more, the cells have no room for `4 → 5`."""
COLUMNS = ("run", "stage", "versions forward", "versions backward", "updates late, mean", "at most")


class Grid(NamedTuple):
    """The `uses` of the first micro-batches of runs that use the same versions, and the `labels` of these runs."""

    labels: Sequence[str]
    uses: Sequence[Use]

    @property
    def label(self) -> str:
        return _named(self.labels)

    @property
    def mixes(self) -> bool:
        """Whether a backward uses another version than its forward."""
        return any(use.forward != use.backward for use in self.uses)

    @property
    def stages(self) -> list[int]:
        return sorted({use.stage for use in self.uses})

    def of(self, stage: int) -> list[Use]:
        return [use for use in self.uses if use.stage == stage]


def chart(grids: Sequence[Grid], source: str) -> Chart:
    """Cells show the version, as `forward → backward` where the two differ; the later the gradient, the stronger the
    tint."""
    rows = [(grid, stage) for grid in grids for stage in grid.stages]
    columns = sorted({use.micro_batch for grid in grids for use in grid.uses})
    cells = [{use.micro_batch: use for use in grid.of(stage)} for grid, stage in rows]
    most = max((use.late for grid in grids for use in grid.uses), default=0)
    figure = {
        "data": [_heatmap(columns, cells, most)] if rows else [],
        "layout": theme.layout(
            ROW_PX * max(len(rows), 1) + 70,
            xaxis=theme.axis("micro-batch, from the run's first", dtick=max(1, len(columns) // 16), zeroline=False),
            yaxis=theme.rows_axis([theme.escape_label(f"{grid.label}, stage {stage}") for grid, stage in rows]),
            meta={"narrow": {"xaxis": _narrow(columns)}},
        ),
    }
    subtitle = (
        "Weight version on each stage, in micro-batches whose gradients it holds; a → b: forward, backward; tinted: "
        f"its gradient is late, at most {plural_text(most, 'update')}"
    )
    return Chart("versions", _title(grids), subtitle, source, figure, COLUMNS, [_row(*row) for row in rows])


def _narrow(columns: Sequence[int]) -> dict[str, Any]:
    """Changes to the x axis on a phone."""
    if len(columns) <= NARROW:
        return {}
    first = theme.axis(f"micro-batch, the first {NARROW} of {len(columns)}")
    return {"range": [columns[0] - 0.5, columns[0] + NARROW - 0.5], "title": first["title"]}


def _heatmap(columns: Sequence[int], cells: Sequence[dict[int, Use]], most: int) -> dict[str, Any]:
    """One row of cells by micro-batch for each stage; `most` = the greatest delay of a gradient, in updates."""
    return {
        "type": "heatmap",
        "x": columns,
        "y": list(range(len(cells))),
        "z": [[row[i].late if i in row else None for i in columns] for row in cells],
        "text": [[_text(row.get(i)) for i in columns] for row in cells],
        "texttemplate": "%{text}",
        "textfont": {"size": 12, "color": var("ink")},
        "meta": {"narrow": {"textfont": {"size": 10, "color": var("ink")}}},
        "customdata": [[_said(row.get(i)) for i in columns] for row in cells],
        "hovertemplate": "%{customdata}<extra></extra>",
        "colorscale": [[0, var("sunken")], [1, var("accent-soft")]],
        "zmin": 0,
        "zmax": max(most, 1),
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
    }


def _text(use: Use | None) -> str:
    if use is None:
        return ""
    return str(use.forward) if use.forward == use.backward else f"{use.forward} → {use.backward}"


def _said(use: Use | None) -> str:
    if use is None:
        return ""
    return f"micro-batch {use.micro_batch}: forward at {use.forward}, backward at {use.backward}, {use.late} late"


def _title(grids: Sequence[Grid]) -> str:
    """Says which runs mix versions, and by how much at most."""
    if not grids:
        return "0 runs of this study keep their pipeline full."
    every = [label for grid in grids for label in grid.labels]
    mixed = [label for grid in grids if grid.mixes for label in grid.labels]
    go = "goes" if len(mixed or every) == 1 else "go"
    if mixed:
        worst = plural_text(max(use.backward - use.forward for grid in grids for use in grid.uses), "micro-batch")
        return f"{_named(mixed)} {go} backward through weights {worst} newer than forward."
    return f"{len(every)} of {plural_text(len(every), 'run')} {go} backward through the weights of their forward."


def _named(labels: Sequence[str]) -> str:
    """One or two runs by name, of more the first: `A and B`, `A and 2 more`."""
    return " and ".join(labels) if len(labels) < 3 else f"{labels[0]} and {len(labels) - 1} more"


def _row(grid: Grid, stage: int) -> list[str]:
    own = grid.of(stage)
    late = [use.late for use in own]
    versions = (" ".join(str(use.forward) for use in own), " ".join(str(use.backward) for use in own))
    return [", ".join(grid.labels), str(stage), *versions, significant(sum(late) / len(late)), str(max(late))]
