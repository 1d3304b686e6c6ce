"""What the function of a method returns is checked, and how methods are registered: errors name the method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from tests.cases import each
from vitreous.core.errors import ShapeError, SpecError
from vitreous.methods.register_method import make_method
from vitreous.testing import ContractError, check_method

PROMISES: dict[str, Any] = {"signed": False, "class_specific": False, "backwards": 0}


@each(
    "function, keywords, message",
    [
        (
            lambda layer: layer.hidden.norm(dim=-1),
            {"fold": vitreous.last, "mixing": True},
            r"must return \[3, 17, 17\]",
        ),
        (lambda layer: None, {"fold": vitreous.last}, "'mine' returns NoneType; it must return a tensor"),
        (lambda layer: layer.hidden.norm(dim=-1).numpy(), {"fold": vitreous.last}, "'mine' returns ndarray"),
        (lambda probe: None, {}, "'mine' returns NoneType"),
        (lambda probe: np.zeros((3, 16)), {}, "'mine' returns ndarray"),
        (lambda probe: torch.zeros(3, 16, dtype=torch.long), {}, r"'mine' returns torch\.int64"),
        (lambda probe: torch.zeros(3, 5), {}, r"'mine' returns \[3, 5\]; it must return \[3, 16\]"),
    ],
)
def test_scores_of_a_wrong_kind_are_refused_by_name(function: Callable[..., Any], keywords, message):
    with pytest.raises(ShapeError, match=message):
        check_method(make_method("mine", function, **keywords, **PROMISES))


@pytest.mark.filterwarnings("ignore::vitreous.Caveat")
def test_a_map_that_is_not_finite_does_not_pass_the_contract_tests():
    def divided(layer: vitreous.Layer, temperature: float = 0.0) -> torch.Tensor:
        return layer.hidden.norm(dim=-1) / temperature

    with pytest.raises(ContractError, match="some scores are not finite"):
        check_method(make_method("divided", divided, fold=vitreous.last, **PROMISES))


def test_a_fold_is_no_text_and_a_name_has_no_spaces():
    with pytest.raises(TypeError, match=r"fold='last' of method 'mine'; a fold such as vitreous\.last"):
        make_method("mine", lambda layer: layer.hidden.sum(-1), fold="last", **PROMISES)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"method 'my method' could not be found by this name.* such as 'my_method'"):
        vitreous.method("my method", fold=vitreous.last, **PROMISES)(lambda layer: layer.hidden.sum(-1))


def test_the_precision_that_is_advised_for_half_weights_is_one_that_the_model_is_computed_in():
    import timm

    torch.manual_seed(0)
    network = vitreous.see_through(timm.create_model("resnet18", num_classes=3).bfloat16().eval(), size=(32, 32))

    with pytest.warns(vitreous.Caveat, match="use precision='tf32'"):
        vitreous.explain(network, torch.zeros(1, 3, 32, 32), method="gradcam")
