"""Linearisations: which factors of a block the backward pass treats as constants.

Forward values are bit-identical to the model's. The named linearisations are settings of seven parameters:

    =============  =====  =====  =========  ===========  ========  =======  ========
    name           qk     v      norm       activation   gate      softmax  residual
    =============  =====  =====  =========  ===========  ========  =======  ========
    plain          1      1      exact      exact        exact     1        0
    conservative   0      1      frozen     exact        exact     1        0
    decompx        0      1      frozen     ratio        frozen    1        0
    libra          0      1      frozen     ratio        halved    1        0
    attnlrp        1/4    1/2    frozen     ratio        halved    1        0
    tempered       1/4    1      frozen     ratio        halved    1        0
    gim            1/4    1/2    frozen     exact        halved    2        0
    reslrp         1/4    1/2    frozen     ratio        halved    1        1
    =============  =====  =====  =========  ===========  ========  =======  ========
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.capture import fused
from vitreous.capture.backward_functions import (
    FrozenLayerNorm,
    FrozenScale,
    RatioActivation,
    ResidualSum,
    damp,
)
from vitreous.capture.precision import half_products
from vitreous.core.errors import ModelError, SpecError
from vitreous.core.messages import shorten_repr
from vitreous.core.registry import Registry

LARGEST_FACTOR = 100  # of a gradient; applied once per block, so larger factors overflow in single precision
SMALLEST = {"softmax": 0.01, "residual": 0}  # of a temperature, and of γ, whose rule has a pole below 0


@dataclass(frozen=True, slots=True)
class Linearisation:
    """Modifications of the backward pass through a block.

    Parameters
    ----------
    qk
        Factor on the gradient through queries and keys; 0 treats the attention matrix as constant.
    v
        Factor on the gradient through values.
    norm
        "exact"; "frozen": the standard deviation (or root mean square) is constant; "fixed": the mean is constant too.
    activation
        "exact", or "ratio": act(x) is treated as x times the constant act(x) / x.
    gate
        Product of a gated MLP: "exact"; "frozen": the activated gate is constant; "halved": gradients through both
        factors are halved.
    softmax
        Temperature T of the attention's softmax in the backward pass: with p = softmax(s / T), the gradient of the
        scores s is p ⊙ (g − ⟨g, p⟩) row by row, without a factor 1 / T. 1 is the true gradient.
    residual
        γ of ResLRP's rule for the two sums y = a + b of a block: the gradient of a is that of y times
        w(a) y / (w(a) a + w(b) b) with w(u) = 1 + γ where u and y have the same sign and 1 elsewhere; that of b
        likewise. 0 is the true gradient.

    Examples
    --------
    >>> import vitreous
    >>> vitreous.Linearisation(qk=0, norm="frozen", activation="ratio", gate="frozen").complete
    True
    >>> import torch
    >>> linearisation = vitreous.Linearisation(qk=0, norm="frozen", activation="ratio", gate="frozen", residual=1)
    >>> x = torch.ones(1, 2, 4, requires_grad=True)
    >>> norm = torch.nn.LayerNorm(4)
    >>> linearisation.normalise(norm, x).shape, linearisation.add_and_normalise(norm, x, x)[0].shape
    (torch.Size([1, 2, 4]), torch.Size([1, 2, 4]))
    >>> linearisation.activate(torch.relu, x).shape, linearisation.multiply(x, x).shape, linearisation.add(x, x).shape
    (torch.Size([1, 2, 4]), torch.Size([1, 2, 4]), torch.Size([1, 2, 4]))
    >>> q, k, v = linearisation.attention(x, x, x)
    >>> q.requires_grad, v.requires_grad
    (False, True)
    >>> linearisation.length(lambda x: x.norm(dim=-1), x).requires_grad
    False
    """

    qk: float | int = 1.0
    v: float | int = 1.0
    norm: Literal["exact", "frozen", "fixed"] = "exact"
    activation: Literal["exact", "ratio"] = "exact"
    gate: Literal["exact", "frozen", "halved"] = "exact"
    softmax: float | int = 1.0
    residual: float | int = 0.0

    @property
    def complete(self) -> bool:
        """Whether shares of tokens and biases add up to the score: all factors but tokens and biases are constant."""
        balanced = self.gate in ("frozen", "halved")
        return (self.qk, self.v, self.norm, self.activation) == (0, 1, "frozen", "ratio") and balanced

    def normalise(self, norm: nn.Module, x: Float[Tensor, "*any d"]) -> Float[Tensor, "*any d"]:
        """Apply a norm; a `ModelError` if its statistics have to be constant and its type is not known.

        Parameters
        ----------
        norm
            The norm of the model.
        x
            Its input.

        Returns
        -------
        Tensor
            `norm(x)`, with the modified backward pass.
        """
        if self.norm == "exact" or isinstance(norm, nn.Identity):
            return norm(x)
        if isinstance(norm, nn.LayerNorm):
            return FrozenLayerNorm.apply(x, norm.weight, norm.bias, norm.eps, self.norm == "frozen")
        if "rms" in type(norm).__name__.lower() and hasattr(norm, "eps"):
            return FrozenScale.apply(x, norm(x), norm.weight, epsilon(norm, x))
        raise ModelError(f"a norm of type {type(norm).__name__!r} cannot be held fixed; known: LayerNorm, RMSNorm")

    def add_and_normalise(self, norm: nn.Module, stream: Tensor, update: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Add the output of a branch to the residual stream; return the sum and its norm.

        Parameters
        ----------
        norm
            The norm of the model.
        stream
            Residual stream.
        update
            Output of the branch; None if there is none.

        Returns
        -------
        tuple of Tensor
            The sum, and its norm.
        """
        if self.residual == 0 and is_layer_norm(norm, self.norm) and fused.kernels_for(stream, update) is not None:
            parameters = (norm.weight, norm.bias, norm.eps)
            return fused.AddAndNormalise.apply(stream, update, *parameters, self.norm, half_products())
        total = stream if update is None else self.add(stream, update)
        return total, self.normalise(norm, total)

    def length(self, of: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return `of(x)`, a length that logits are divided by; constant unless `norm` is "exact".

        Parameters
        ----------
        of
            Function of the vectors.
        x
            The vectors.

        Returns
        -------
        Tensor
            `of(x)`.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.norm == "exact"):
            return of(x)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v with scaled gradients.

        Parameters
        ----------
        q, k, v
            Queries, keys and values.

        Returns
        -------
        tuple of Tensor
            The same values.
        """
        return damp(q, self.qk), damp(k, self.qk), damp(v, self.v)

    def add(self, stream: Tensor, update: Tensor) -> Tensor:
        """Add the output of a branch to the residual stream.

        Parameters
        ----------
        stream
            Residual stream.
        update
            Output of the branch.

        Returns
        -------
        Tensor
            The sum.
        """
        return stream + update if self.residual == 0 else ResidualSum.apply(stream, update, self.residual)

    def activate(self, act: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply an activation function.

        Parameters
        ----------
        act
            The activation function of the model.
        x
            Its input.

        Returns
        -------
        Tensor
            `act(x)`, with the modified backward pass.
        """
        return act(x) if self.activation == "exact" else RatioActivation.apply(x, act)

    def multiply(self, gate: Tensor, value: Tensor) -> Tensor:
        """Multiply the activated gate and the value of a gated MLP.

        Parameters
        ----------
        gate
            The activated gate.
        value
            The value.

        Returns
        -------
        Tensor
            The product.
        """
        match self.gate:
            case "halved":
                return damp(gate * value, 0.5)
            case "frozen":
                return gate.detach() * value
        return gate * value


# Values of every parameter; empty: any number.
CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(hint) if get_origin(hint) is Literal else () for name, hint in get_type_hints(Linearisation).items()
}


def is_layer_norm(norm: nn.Module, mode: str) -> bool:
    """Whether `norm` is a layer norm over the last axis; if its own forward is differentiated, also whether it is torch's."""
    if not isinstance(norm, nn.LayerNorm) or len(norm.normalized_shape) != 1:
        return False
    return mode != "exact" or type(norm).__name__ == "LayerNorm"


def epsilon(norm: Any, x: Tensor) -> float:
    """Epsilon of a norm; `torch.nn.RMSNorm` uses that of the dtype if none is set."""
    return torch.finfo(x.dtype).eps if norm.eps is None else norm.eps


PLAIN = Linearisation()
CONSERVATIVE = Linearisation(qk=0, norm="frozen")
DECOMPX = Linearisation(qk=0, norm="frozen", activation="ratio", gate="frozen")
LIBRA = replace(DECOMPX, gate="halved")
ATTNLRP = Linearisation(qk=0.25, v=0.5, norm="frozen", activation="ratio", gate="halved")
TEMPERED = replace(LIBRA, qk=0.25)
GIM = replace(ATTNLRP, activation="exact", softmax=2.0)
RESLRP = replace(ATTNLRP, residual=1.0)

LINEARISATIONS: Registry[Linearisation] = Registry("linearisation")
for _name, _point, _aliases in (
    ("plain", PLAIN, ("linear",)),
    ("conservative", CONSERVATIVE, ("alilrp", "cplrp")),
    ("decompx", DECOMPX, ()),
    ("libra", LIBRA, ("libragrad",)),
    ("attnlrp", ATTNLRP, ()),
    ("tempered", TEMPERED, ()),
    ("gim", GIM, ()),
    ("reslrp", RESLRP, ()),
):
    LINEARISATIONS.add(_name, _point, "vitreous", _aliases)


def linearisation(name: str, /, **changes: Any) -> Linearisation:
    """Return a named linearisation, optionally with some parameters changed.

    Parameters
    ----------
    name
        A registered name or alias, such as "plain" or "decompx".
    **changes
        Parameters of `Linearisation` to replace.

    Raises
    ------
    SpecError
        If the name, a parameter or a value is not known.

    Examples
    --------
    >>> linearisation("linear", qk=0.5, norm="frozen")
    Linearisation(qk=0.5, v=1.0, norm='frozen', activation='exact', gate='exact', softmax=1.0, residual=0.0)
    """
    point = LINEARISATIONS[name]
    for key, value in changes.items():
        if key not in CHOICES:
            raise SpecError(f"linearisation {name!r} has no option {shorten_repr(key)}; known: {', '.join(CHOICES)}")
        allowed = CHOICES[key]
        if allowed and not (isinstance(value, str) and value in allowed):
            raise SpecError(f"linearisation {key}={shorten_repr(value)}; known: {', '.join(map(repr, allowed))}")
        if not allowed:
            check_factor(key, value)
    return replace(point, **changes)


def check_factor(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"linearisation {key}={shorten_repr(value)} must be a number")
    low = SMALLEST.get(key, -LARGEST_FACTOR)
    if not low <= value <= LARGEST_FACTOR:
        raise SpecError(f"linearisation {key}={shorten_repr(value)} must be a number from {low} to {LARGEST_FACTOR}")
