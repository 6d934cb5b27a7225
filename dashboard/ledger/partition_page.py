"""Numbers and sentences of the Partition page: the user's cuts next to PipeDream's optimum, Megatron's and the exact
split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from pydantic import ValidationError

from dashboard.ledger.models import Profile
from dashboard.ledger.optimizers import USUAL, with_optimizer
from dashboard.ledger.shown_table import shown_table
from dashboard.runs.form.form_words import in_form_words
from parallel_core.analysis.quantities import bytes_text, seconds_text, sentence_text
from parallel_core.outline import outline_of
from parallel_core.plan.layer_graph import GraphError, LayerGraph
from parallel_core.plan.network_levels import Level
from parallel_core.plan.pipedream import Form, partition
from parallel_core.plan.stages import CutChain, balanced_cut, cut_chain, even_cut, layers_of
from parallel_core.profile.table import CostTable
from parallel_core.spec import RunSpec, field_errors

FALLBACK_BANDWIDTH = 1e9
"""Bytes/s, if no link was measured."""


@dataclass(frozen=True)
class NamedCut:
    """One way to cut the layers: its name, its chain (None if impossible, then `why_not`), and the address that adopts
    it."""

    name: str
    chain: CutChain | None
    why_not: str = ""
    address: str = ""

    @property
    def cuts(self) -> str:
        return ", ".join(map(str, self.chain.cuts)) if self.chain else ""

    @property
    def replicas(self) -> str:
        return "-".join(map(str, self.chain.replicas)) if self.chain else ""


@dataclass(frozen=True)
class Asked:
    """The checked values of the query."""

    profile: Profile
    samples: int
    workers: int
    cuts: tuple[int, ...]
    replicas: tuple[int, ...]
    form: Form
    optimizer: str

    def address(self, **changes: Any) -> str:
        """The address of the page with these `changes`."""
        values = {
            "profile": self.profile.pk,
            "samples": self.samples,
            "workers": self.workers,
            "cuts": ",".join(map(str, changes.pop("cuts", self.cuts))),
            "replicas": "-".join(map(str, changes.pop("replicas", self.replicas))),
            "form": self.form,
            "optimizer": self.optimizer,
            **changes,
        }
        return f"{reverse('ledger:partition')}?{urlencode(values)}"


class Page:
    """Everything that the page shows. Raises ValueError if the cuts are impossible."""

    def __init__(self, profile: Profile, values: dict[str, Any]) -> None:
        self.table = CostTable.model_validate(shown_table(profile))
        spec = RunSpec.stored(profile.spec)
        samples = values["samples"] or max(1, spec.train.global_batch // 4)
        self.layers = layers_of(self.table, samples)
        self.units = [layer.name for layer in self.layers]
        replicas = tuple(values["replicas"])
        # The other partitions get at least as many devices as these cuts take, so that the comparison is fair.
        taken = sum(replicas) or (len(values["cuts"]) + 1 if values["cuts"] else 0)
        workers = max(values["workers"] or 0, taken) or max(2, min(len(self.layers), len(profile.worker.devices)))
        stages = len(replicas) or (len(values["cuts"]) + 1 if values["cuts"] else min(workers, len(self.layers)))
        cuts = tuple(values["cuts"]) or balanced_cut(self.layers, stages)
        self.asked = Asked(
            profile,
            samples,
            workers,
            cuts,
            replicas or (1,) * (len(cuts) + 1),
            values["form"] or "paper",
            values["optimizer"] or USUAL,
        )
        self.yours = cut_chain(self.layers, cuts, self.asked.replicas, self.bandwidth, self.asked.form)

    @property
    def bandwidth(self) -> float:
        """Bytes/s from stage to stage, as measured on the worker."""
        link = self.table.link("send", 2)
        beta = link.time.line[1] if link else 0.0
        return 1 / beta if beta else FALLBACK_BANDWIDTH

    @cached_property
    def named_cuts(self) -> list[NamedCut]:
        """The user's cuts first, then the other partitions over the same number of devices or stages."""
        asked, stages = self.asked, len(self.yours.stages)
        return [
            NamedCut("Yours", self.yours, address=asked.address()),
            self._optimum(),
            self._split("Exact min-max split", lambda: balanced_cut(self.layers, stages)),
            self._split("Megatron's even split", lambda: even_cut(self.units, stages)),
        ]

    def _optimum(self) -> NamedCut:
        name, asked = "PipeDream's optimum", self.asked
        try:
            found = partition(LayerGraph.chain(self.layers), [Level(asked.workers, self.bandwidth)], asked.form)
        except GraphError as error:
            return NamedCut(name, None, sentence_text(str(error)))
        cuts = tuple(stage.layers[0] for stage in found.stages[1:])
        return self._named_cut(name, cuts, tuple(stage.replicas for stage in found.stages))

    def _split(self, name: str, cut: Any) -> NamedCut:
        try:
            return self._named_cut(name, cut(), (1,) * len(self.yours.stages))
        except ValueError as error:
            return NamedCut(name, None, sentence_text(str(error)))

    def _named_cut(self, name: str, cuts: Sequence[int], replicas: Sequence[int]) -> NamedCut:
        chain = cut_chain(self.layers, cuts, replicas, self.bandwidth, self.asked.form)
        return NamedCut(name, chain, address=self.asked.address(cuts=cuts, replicas=replicas))

    @property
    def alpa(self) -> str:
        """The address that serves Alpa's plans for the same devices."""
        query = self.asked.address().partition("?")[2]
        return f"{reverse('ledger:alpa')}?{query}"

    def sentences(self) -> list[str]:
        """The verdict, and what the costs leave out of it."""
        return [*self._verdict(), *self._left_out()]

    def _left_out(self) -> list[str]:
        norms = outline_of(self.table.model).norms
        chains = [cut.chain for cut in self.named_cuts if cut.chain]
        if not norms or all(chain.replicas == (1,) * len(chain.replicas) for chain in chains):
            return []
        return [
            f"Replicas would also exchange statistics at {norms} batch norms, forward and backward, which this cost "
            "leaves out; This fleet counts it."
        ]

    def _verdict(self) -> list[str]:
        """Which stage sets the pace, what balance would bring, and how the optimum compares."""
        chain = self.yours
        busy = sum(stage.compute for stage in chain.stages) / sum(chain.replicas)
        slow = chain.slowest
        worst = max(range(len(chain.stages)), key=lambda i: chain.stages[i].message)
        if chain.stages[worst].message > chain.stages[slow].seconds:
            first = f"The message after stage {worst} sets the pace: {seconds_text(chain.seconds)} a micro-batch."
        else:
            own = seconds_text(chain.stages[slow].seconds)
            first = f"Stage {slow} sets the pace: {own} a micro-batch; balanced would be {seconds_text(busy)}."
        optimum = self.named_cuts[1].chain
        if optimum is None:
            return [first]
        gain = chain.seconds / optimum.seconds
        if gain <= 1 or seconds_text(optimum.seconds) == seconds_text(chain.seconds):  # as in the table below
            return [first, "No other partition over as many devices is faster."]
        if gain < 1.005:
            return [first, "PipeDream's optimum over as many devices is less than 1 % faster."]
        count, replicas = len(optimum.stages), self.named_cuts[1].replicas
        how = f"{count} stages with replicas {replicas}" if count > 1 else f"1 stage of {replicas} replicas"
        return [first, f"PipeDream's optimum over {self.asked.workers} devices is {gain:.2f} times as fast: {how}."]

    def stages(self) -> list[dict[str, Any]]:
        """One row a stage, with addresses that move its begin and change its replicas."""
        return [self._stage(i) for i in range(len(self.yours.stages))]

    def _stage(self, i: int) -> dict[str, Any]:
        stage = self.yours.stages[i]
        return {
            "number": i,
            "layers": f"{self.units[stage.first]} to {self.units[stage.stop - 1]}",
            "count": stage.stop - stage.first,
            "replicas": stage.replicas,
            "seconds": seconds_text(stage.seconds, zeros=True),
            "compute": seconds_text(stage.compute, zeros=True),
            "width": round(100 * stage.seconds / self.yours.seconds, 2),
            "slowest": i == self.yours.slowest,
            "sent": bytes_text(2 * stage.sent, zeros=True) if stage.sent else "",
            "message": seconds_text(stage.message, zeros=True) if stage.sent else "",
            "parameters": bytes_text(stage.parameters, zeros=True),
            "earlier": self._moved(i, -1),
            "later": self._moved(i, 1),
            "more": self._replicated(i, 1) if stage.replicas < 64 else "",
            "fewer": self._replicated(i, -1) if stage.replicas > 1 else "",
            "join": self._joined(i) if i else "",
            "halve": self._halved(i),
        }

    def _moved(self, i: int, by: int) -> str:
        """The address of the page with the begin of stage i moved by `by` layers; '' if a stage would be empty."""
        if not i:
            return ""
        edges = [0, *self.asked.cuts, len(self.layers)]
        edges[i] += by
        fits = edges[i - 1] < edges[i] < edges[i + 1]
        return self.asked.address(cuts=edges[1:-1]) if fits else ""

    def _replicated(self, i: int, by: int) -> str:
        changed = [m + by * (n == i) for n, m in enumerate(self.asked.replicas)]
        return self.asked.address(replicas=changed, workers=sum(changed))

    def _joined(self, i: int) -> str:
        """The address of the page with stage i joined to the stage before it, which keeps its replicas."""
        replicas = _without(self.asked.replicas, i)
        return self.asked.address(cuts=_without(self.asked.cuts, i - 1), replicas=replicas, workers=sum(replicas))

    def _halved(self, i: int) -> str:
        """The address of the page with stage i cut into two balanced stages; '' if it has only one layer."""
        stage = self.yours.stages[i]
        if stage.stop - stage.first < 2:
            return ""
        own = self.layers[stage.first : stage.stop]
        cuts = sorted([*self.asked.cuts, stage.first + balanced_cut(own, 2)[0]])
        replicas = [*self.asked.replicas[: i + 1], 1, *self.asked.replicas[i + 1 :]]
        return self.asked.address(cuts=cuts, replicas=replicas, workers=sum(replicas))

    def run(self) -> tuple[str, str]:
        """Returns (address of New run with these cuts and replicas, '') or ('', why they cannot be run)."""
        chain, spec = self.yours, with_optimizer(self.asked.profile.spec, self.asked.optimizer)
        equal, train = len(set(chain.replicas)) == 1, dict(spec["train"])
        dp, batch = chain.replicas[0] if equal else 1, train["global_batch"]
        parallel = {"dp": dp, "pp": len(chain.stages), "micro_batches": max(1, batch // (dp * self.asked.samples))}
        if len(chain.stages) > 1:
            parallel["cuts"] = list(chain.cuts)
        if not equal:  # PipeDream's schedule: each stage updates by itself and keeps the weight versions in use
            parallel |= {"replicas": list(chain.replicas), "schedule": "1f1b-stash"}
            train["clip"] = "stage"
        asked = {"model": spec["model"], "parallel": parallel, "train": train}
        try:
            RunSpec.model_validate(asked)
        except ValidationError as error:
            return "", in_form_words(" ".join(field_errors(error).values()))
        return f"{reverse('runs:new')}?{urlencode({'spec': json.dumps(asked)})}", ""


def _without(values: Sequence[int], index: int) -> list[int]:
    return [value for i, value in enumerate(values) if i != index]
