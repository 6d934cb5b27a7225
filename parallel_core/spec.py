"""RunSpec: everything that defines a training run.

The spec is plain data (pydantic, frozen, unknown keys refused). It contains no path, module, command, host or
environment variable: a worker validates it again and can only train with it.

Rules between fields are in `rules`, `outline` and `faults`; `rules.checks` lists them. Errors name the fields, the
rule, and the nearest valid values; `field_errors` turns a pydantic error into `{dotted field: message}` for
forms and for the API (both are in `rules`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, model_validator

from parallel_core import limits, rules
from parallel_core.faults import KINDS as FAULTS
from parallel_core.faults import AnyFault
from parallel_core.field_names import likely
from parallel_core.model_spec import ModelSpec
from parallel_core.outline import BUILT_IN_CORPORA, FILE_CORPORA, KINDS, outline_of
from parallel_core.parallel_spec import ParallelSpec
from parallel_core.rules import rule_error
from parallel_core.rules.checks import check_all
from parallel_core.spec_part import NotNegative, SpecPart
from parallel_core.truth_values import NumbersAreNumbers

Precision = Literal["fp32", "fp64", "bf16", "fp16"]
DeviceKind = Literal["cpu", "cuda"]
Clip = Literal["global", "stage"]
LrSchedule = Literal["constant", "linear", "cosine"]
Optimizer = Literal["adamw", "sgd"]

BYTES_PER_ELEMENT: dict[str, int] = {"fp32": 4, "fp64": 8, "bf16": 2, "fp16": 2}
"""Bytes of an element of parameters and activations."""
CAP_NEEDED = f"A whole number of bytes from 1 to {limits.MAX_BYTES} is needed"
MAIN_BYTES: dict[str, int] = {"fp32": 4, "fp64": 8, "bf16": 4, "fp16": 4}
"""Bytes of an element of gradients, optimizer states and master weights (which only exist in 16-bit runs)."""
CORPUS_PATTERN = re.compile(
    rf"({'|'.join(BUILT_IN_CORPORA)}|blob:[0-9a-f]{{64}}|({'|'.join(FILE_CORPORA)}):[A-Za-z0-9][A-Za-z0-9._-]{{0,63}})"
)

STORED = "stored"
"""Context key of `RunSpec.model_validate`: see `RunSpec.stored`."""


class TrainSpec(SpecPart):
    """Optimization, data and duration."""

    steps: Annotated[int, Field(ge=1, le=limits.MAX_STEPS)] = 43
    """Optimizer steps, warm-up included."""
    warmup_steps: Annotated[int, Field(ge=0, le=1000)] = 3
    """First steps, which are not timed."""
    global_batch: Annotated[int, Field(ge=1, le=limits.MAX_GLOBAL_BATCH)] = 16
    """Samples (sequences) of a step over all replicas."""
    lr: Annotated[float, Field(gt=0, le=100)] = 3e-4
    """Learning rate; its peak where it warms up or decays."""
    lr_schedule: LrSchedule = "constant"
    """How the learning rate falls after its warm-up, until the last step (`learning_rate.rate_at`)."""
    lr_warmup_steps: Annotated[int, Field(ge=0, lt=limits.MAX_STEPS)] = 0
    """First steps, over which the learning rate rises to `lr`; unlike `warmup_steps` they are timed."""
    lr_final: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of `lr` to which a schedule falls; a tenth as in Brown et al. 2020, appendix B."""
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Weight decay: AdamW's shrinks the weights beside the update; SGD's is added to the gradient, as in
    torch.optim.SGD."""
    optimizer: Optimizer = "adamw"
    """What updates the weights: AdamW, or stochastic gradient descent with momentum."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Share of its last update direction that SGD keeps; 0 = plain SGD, which keeps no state."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of AdamW's mean of the gradients."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of AdamW's mean of their squares."""
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    """Added by AdamW to the root of that mean."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Norm above which gradients are scaled down to it; None = never."""
    clip: Clip = "global"
    """Which norm `clip_norm` bounds: that of all gradients, or of those of each pipeline place."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 7
    """Seed of weights, samples and dropout."""
    precision: Precision = "fp32"
    """Type of weights and activations; 16 bits keep fp32 master weights."""
    loss_scale: Annotated[float, Field(ge=1, le=limits.MAX_LOSS_SCALE)] = 2.0**16
    """Initial loss scale; this and the next three fields only apply to fp16 (see engine.precision)."""
    loss_scale_window: Annotated[int, Field(ge=1, le=limits.MAX_STEPS)] = 2000
    """Number of consecutive good steps after which the scale grows."""
    loss_scale_growth: Annotated[float, Field(ge=1, le=16)] = 2.0
    """Factor by which the scale grows."""
    loss_scale_backoff: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor by which it falls when gradients overflow."""
    eval_every: Annotated[int, Field(ge=0, le=limits.MAX_STEPS)] = 0
    """Steps between evaluations of the held-out loss (`engine.evaluation`), also made after the last; 0 = none."""
    eval_samples: Annotated[int, Field(ge=1, le=limits.MAX_HELD_OUT)] = 64
    """Samples of an evaluation: the last ones of the corpus, which are then never trained on."""
    corpus: str = "stdlib"
    """What is trained on: a built-in corpus, `blob:` and the sha256 of a text, or `tokens:` or `images:` and a name."""
    weights: Annotated[str, Field(pattern=rules.NAME_OR_NONE)] = ""
    """Name of a folder of Llama weights (safetensors) in the worker's data folder from which the run begins; '' =
    random initial values. A checkpoint that it resumes from comes first."""
    other_data: bool = False
    """Go on from a checkpoint although the corpus, which has the same name, has other content than it was trained on;
    else such a run is refused. Data of another name are always accepted."""
    device: DeviceKind = "cpu"
    """Kind of device of every rank; a CPU device is a core."""
    deterministic: bool = False
    """Use only bitwise reproducible algorithms, which may be slower (torch.use_deterministic_algorithms)."""
    checkpoint_every: Annotated[int, Field(ge=0, le=limits.MAX_STEPS)] = 0
    """Steps between checkpoints; one is also saved after the last step. 0: only when the run is stopped by SIGTERM, or
    its time is up."""
    keep: Annotated[int, Field(ge=1, le=limits.MAX_KEPT)] = 2
    """How many checkpoints are kept, the newest ones; where one has a lower held-out loss, that one as well."""
    max_minutes: Annotated[float, Field(ge=0, le=limits.MAX_MINUTES)] = 0.0
    """Minutes of training, from the first step of an attempt, after which the run saves and ends; 0 = no limit."""
    stop_on_nan: bool = True
    """End the run when its loss was not finite in `limits.NOT_FINITE_STEPS` steps in a row, and save no broken weights;
    else it goes on, and saves."""

    @property
    def optimizer_states(self) -> int:
        """Numbers that the optimizer keeps of each parameter: AdamW two moments, SGD its momentum, if any."""
        return 2 if self.optimizer == "adamw" else int(self.momentum > 0)

    @property
    def held_out(self) -> int:
        """Number of samples that are kept for evaluations, and never trained on."""
        return self.eval_samples if self.eval_every else 0

    @model_validator(mode="after")
    def _corpus_is_named_by_content(self) -> Self:
        if not CORPUS_PATTERN.fullmatch(self.corpus):
            files = " or ".join(repr(f"{word}:") for word in FILE_CORPORA)
            raise rule_error(
                ("train.corpus",),
                f"corpus must be {', '.join(map(repr, BUILT_IN_CORPORA))}, 'blob:' and the sha256 of an uploaded text, "
                f"or {files} and the name of a file on the worker (letters, digits, '.', '_', '-').",
            )
        return self


class TraceSpec(SpecPart):
    """What is recorded of a run. Steps count from 0; a metered step is never a timed one.

    `trace_every` = k > 0 also traces the step in the middle of the timed ones. Memory is metered in step 1 if it is a
    warm-up step, otherwise in an extra step after the last; without a flush, in the first step with a full pipeline.
    """

    trace_every: Annotated[int, Field(ge=0, le=limits.MAX_STEPS)] = 10
    """Steps between traced ones; 0 traces one in the middle of the timed steps."""
    fingerprint_every: Annotated[int, Field(ge=0, le=limits.MAX_STEPS)] = 20
    """Steps between bitwise comparisons of replicas (engine.fingerprint), also made after the last step; 0 = none."""
    memory: bool = True
    """Whether to meter memory in a step that is not timed."""
    memory_cap: Annotated[int, Field(ge=1, le=limits.MAX_BYTES)] | None = None
    """Live bytes that a rank may hold; above this it ends as out of memory. None = the device's own limit."""
    reference: bool = True
    """Whether to measure the speed of the devices by reference work between the timed steps (observe.reference)."""
    profile_steps: Annotated[tuple[NotNegative, ...], Field(max_length=limits.MAX_PROFILED)] = ()
    """Steps that torch.profiler records; they take longer than others."""
    profile_ranks: Annotated[tuple[NotNegative, ...], Field(max_length=limits.MAX_PROFILED)] | None = None
    """Ranks that torch.profiler records; None = all."""


class RunSpec(SpecPart, NumbersAreNumbers):
    """One training run. All input, from form, API, queue and file, is validated by `RunSpec.model_validate(dict)`."""

    model: ModelSpec = ModelSpec()
    """What is trained."""
    parallel: ParallelSpec = ParallelSpec()
    """How it is split."""
    train: TrainSpec = TrainSpec()
    """How it is trained, on what, and how long."""
    trace: TraceSpec = TraceSpec()
    """What is recorded."""
    inject: Annotated[tuple[AnyFault, ...], Field(max_length=limits.MAX_FAULTS)] = ()
    """Faults injected on purpose, each kind at most once (`parallel_core.faults`)."""

    @model_validator(mode="before")
    @classmethod
    def _usual_corpus(cls, data: Any) -> Any:
        """Sets the default corpus of the model's kind where none is given."""
        if not isinstance(data, dict):
            return data
        model, train = data.get("model", {}), data.get("train", {})
        kind = model.get("kind", "gpt") if isinstance(model, dict) else getattr(model, "kind", None)
        outline = KINDS.get(kind) if isinstance(kind, str) else None
        if outline is None or not isinstance(train, dict) or "corpus" in train:
            return data
        return {**data, "train": {**train, "corpus": outline.corpora[0]}}

    @classmethod
    def stored(cls, spec: Any) -> Self:
        """Returns a spec that was valid when it was stored, without checking rules between fields.

        Rules added later must prevent it from being run again, but not from being displayed.
        """
        return cls.model_validate(spec, context={STORED: True})

    @model_validator(mode="after")
    def _combinations(self, info: ValidationInfo) -> Self:
        if (info.context or {}).get(STORED):
            return self
        check_all(self)
        return self

    @property
    def fp32_elements(self) -> int:
        """Number of elements, in the run's dtype, that a number kept in fp32 takes: 2 in 16-bit runs, otherwise 1."""
        return MAIN_BYTES[self.train.precision] // BYTES_PER_ELEMENT[self.train.precision]

    @property
    def micro_batch_size(self) -> int:
        """Samples in one micro-batch."""
        return self.train.global_batch // self.parallel.per_step

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of parameters and activations."""
        return BYTES_PER_ELEMENT[self.train.precision]

    def with_width(self, width: int) -> RunSpec:
        """Returns the spec with `width` tensor ranks for every place, to describe layers of places with that width."""
        parallel = self.parallel.model_copy(update={"tp": width, "widths": None})
        return self.model_copy(update={"parallel": parallel})

    @property
    def tokens_per_step(self) -> int:
        """Largest number of targets of a step: tokens, or images for an image model."""
        return self.train.global_batch * outline_of(self.model).targets

    @property
    def timed_steps(self) -> int:
        """Number of steps after the warm-up."""
        return self.train.steps - self.train.warmup_steps


def field_errors(error: ValidationError) -> dict[str, str]:
    """As `rules.field_errors`; where the error is of a RunSpec, with the fields that were probably meant."""
    return rules.field_errors(error, describe if error.title == RunSpec.__name__ else rules.describe)


def describe(item: Mapping[str, Any], loc: tuple[Any, ...]) -> tuple[str, str]:
    """As `rules.describe`, for an error at `loc` of a RunSpec: of a field that does not exist it also names the one
    that was probably meant, and of the memory cap its unit, which forms translate into their own. A fault's field is
    named by its kind, as rules between fields name it: `inject.straggler.rank`."""
    if len(loc) > 3 and loc[0] == "inject" and loc[2] in FAULTS:
        loc = (loc[0], *loc[2:])
    field, said = rules.describe(item, loc)
    if loc == ("trace", "memory_cap"):
        _, got, given = said.rstrip(".").partition("; got")
        return field, f"{CAP_NEEDED}{got}{given}."
    meant = _meant(loc) if item["type"] == rules.UNKNOWN else ""
    return field, f"{said.removesuffix('.')}; use {meant}." if meant else said


def _meant(loc: tuple[Any, ...]) -> str:
    """The field that an unknown one was probably meant to be, for a fault all it has; "" for none."""
    if len(loc) == 3 and loc[0] == "inject" and (fault := FAULTS.get(loc[1])):
        return ", ".join(fault.fields())
    return likely(RunSpec, loc)
