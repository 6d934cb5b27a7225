"""Batch normalization with statistics over the samples of all replicas; each micro-batch updates running statistics
once.

A single replica normalizes a micro-batch with its own mean and variance (Ioffe and Szegedy 2015). Several replicas
compute what one would on their joined micro-batches: they exchange means and variances in forward, two sums of
gradients in backward. Running statistics are updated by the first forward pass of each micro-batch, not by its
recomputation; held-out samples are normalized with them. 16-bit values are normalized and summed in fp32, as in torch's
own kernel.

Many consecutive norms amplify rounding errors at a high learning rate, about tenfold per step in ResNet-50 at 1e-2:
replicas diverge from a single device as fast as that does from itself when perturbed by 1e-15 (tests: `test_rounding`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from parallel_core.models.microbatch_context import Follower
from parallel_core.models.numerics import wide

Gather = Callable[[Tensor], Tensor]
"""All-gathers this replica's values [n] to those of all replicas [replicas, n], in the same order on each."""
MOMENTUM = 0.1
EPS = 1e-5


class _AcrossReplicas(torch.autograd.Function):
    """Normalizes [samples, channels, height, width] by `moments`, mean and inverse deviation over all replicas (at
    least fp32)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, moments: Tensor, gather: Gather) -> Tensor:
        mean, inverse = moments
        ctx.save_for_backward(x, weight, moments)
        ctx.gather = gather
        scale = weight * inverse
        return (x * _planes(scale) + _planes(bias - mean * scale)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, (mean, inverse) = ctx.saved_tensors
        given, grad = grad, wide(grad)
        normal = (x - _planes(mean)) * _planes(inverse)
        grad_bias, grad_weight = _sum(grad), _sum(grad * normal)
        sums = ctx.gather(torch.cat([grad_bias, grad_weight]))
        of_bias, of_weight = (sums.sum(0) / (len(sums) * x.numel() // x.shape[1])).chunk(2)
        grad_x = _planes(weight * inverse) * (grad - _planes(of_bias) - normal * _planes(of_weight))
        own = given.dtype
        return grad_x.to(own), grad_weight.to(own), grad_bias.to(own), None, None


def _planes(x: Tensor) -> Tensor:
    return x[:, None, None]


def _sum(x: Tensor) -> Tensor:
    return x.sum((0, 2, 3))


class BatchNorm(Follower):
    """Batch norm over [samples, channels, height, width]. `gather` is set where there are several replicas."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, **like: Any) -> None:
        super().__init__()
        self.gather: Gather | None = None
        self.weight = nn.Parameter(torch.empty(channels, **like))
        self.bias = nn.Parameter(torch.empty(channels, **like))
        # In 16 bits a tenth of a small difference would be rounded away: the statistics would stop short.
        at_least_fp32 = wide(torch.empty(channels, **like))
        self.register_buffer("running_mean", torch.zeros_like(at_least_fp32))
        self.register_buffer("running_var", torch.ones_like(at_least_fp32))

    def forward(self, x: Tensor) -> Tensor:
        if self.passing.held_out:
            return self._normalise_by_running(x)
        if self.gather is None:
            return self._normalise_by_own(x)
        out: Tensor = _AcrossReplicas.apply(x, self.weight, self.bias, self._moments(x, self.gather), self.gather)
        return out

    def _normalise_by_running(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if mean.dtype == x.dtype:
            return F.batch_norm(x, mean, var, self.weight, self.bias, False, MOMENTUM, EPS)
        scale = self.weight * torch.rsqrt(var + EPS)
        return (x * _planes(scale) + _planes(self.bias - mean * scale)).to(x.dtype)

    def _normalise_by_own(self, x: Tensor) -> Tensor:
        """Normalizes by the moments of `x` alone; torch's kernel updates the running ones, in 16 bits aside, as it
        takes no others there."""
        if self.passing.again:
            return F.batch_norm(x, None, None, self.weight, self.bias, True, MOMENTUM, EPS)
        if self.running_mean.dtype == x.dtype:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, MOMENTUM, EPS)
        mean, var = torch.zeros_like(self.bias), torch.zeros_like(self.bias)
        out = F.batch_norm(x, mean, var, self.weight, self.bias, True, 1.0, EPS)
        self._update(mean, var)
        return out

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor) -> None:
        """Takes in the moments of a micro-batch; `var` is the unbiased estimate."""
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), MOMENTUM)
        self.running_var.lerp_(var.to(self.running_var.dtype), MOMENTUM)

    @torch.no_grad()
    def _moments(self, x: Tensor, gather: Gather) -> Tensor:
        """Returns mean and inverse standard deviation over the samples of all replicas, [2, channels]; updates running
        statistics."""
        var, mean = torch.var_mean(wide(x), (0, 2, 3), correction=0)
        means, variances = gather(torch.cat([mean, var])).chunk(2, 1)
        mean = means.mean(0)
        var = (variances + (means - mean).square()).mean(0)
        if not self.passing.again:
            count = len(means) * x.numel() // x.shape[1]
            self._update(mean, var * count / (count - 1))
        return torch.stack([mean, torch.rsqrt(var + EPS)])
