"""Score functions of the logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.models.families import pictures, seen, tiny
from vitreous.capture.probe import Probe
from vitreous.capture.score_function import resolve_score_function
from vitreous.core.errors import ShapeError, SpecError
from vitreous.methods.spec import resolve

Z = tiny("vit-one-output")(pictures()).detach()[:, 0]


# ── one sigmoid output ───────────────────────────────────────────────────────────────────────────


def test_one_output_is_treated_as_two_classes() -> None:
    probe = Probe(seen("vit-one-output"), pictures())

    torch.testing.assert_close(probe.full_logits, torch.stack([torch.zeros(2, dtype=torch.float64), Z], 1))
    assert probe.targets.tolist() == (Z > 0).long().tolist()
    assert seen("vit-one-output").outputs == 2


@pytest.mark.parametrize("question", ["logit", "margin"])
def test_the_score_of_one_output_is_z_or_minus_z(question: str) -> None:
    probe = Probe(seen("vit-one-output"), pictures(), torch.tensor([[1, 0], [0, 1]]), question)

    found = resolve("ixg")(probe)

    torch.testing.assert_close(found.score, torch.stack([Z[0], -Z[0], -Z[1], Z[1]]))


def test_the_probability_of_one_output_is_its_sigmoid() -> None:
    probe = Probe(seen("vit-one-output"), pictures(), torch.tensor([1, 0]), "probability")

    score = resolve("ixg")(probe).score

    torch.testing.assert_close(score, torch.stack([Z[0].sigmoid(), 1 - Z[1].sigmoid()]))


@pytest.mark.parametrize("spec", ["ixg", "decompx+skipplus", "gradcam", "attcat", "attnlrp", "fullgrad@libra+plus"])
def test_evidence_for_one_class_is_evidence_against_the_other(spec: str) -> None:
    both = resolve(spec)(Probe(seen("vit-one-output"), pictures(), torch.tensor([[0, 1], [0, 1]])))

    torch.testing.assert_close(both.patches[0::2], -both.patches[1::2], rtol=1e-12, atol=1e-15)
    assert both.patches.abs().max() > 1e-3


def test_subsets_of_a_binary_model_have_two_classes() -> None:
    probe = Probe(seen("vit-one-output"), pictures(), torch.tensor([0, 1]))
    keep = torch.ones(2, 3, 12, dtype=torch.bool)

    torch.testing.assert_close(probe.logits(keep)[:, :, 1], Z[:, None].expand(2, 3))
    assert (probe.logits(keep)[:, :, 0] == 0).all()
    torch.testing.assert_close(probe.score(keep)[:, 0], torch.stack([-Z[0], Z[1]]))


# ── callables ─────────────────────────────────────────────────────────────────────────────────────


def test_a_callable_of_the_logits_is_a_score_function() -> None:
    def contrast(logits: Tensor) -> Tensor:
        return logits[:, 0] - logits[:, 3]

    found = resolve("ixg")(Probe(seen("vit"), pictures(), question=contrast))

    zero, three = (resolve("ixg")(Probe(seen("vit"), pictures(), torch.tensor([c, c]))) for c in (0, 3))
    torch.testing.assert_close(found.patches, zero.patches - three.patches, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(found.score, zero.score - three.score)


def test_a_callable_of_logits_and_targets_is_a_score_function() -> None:
    def surprise(logits: Tensor, targets: Tensor) -> Tensor:
        return -logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]

    probe = Probe(seen("vit"), pictures(), torch.tensor([1, 2]), surprise)
    found = resolve("ixg")(probe)

    logits = tiny("vit")(pictures())
    torch.testing.assert_close(
        found.score, torch.nn.functional.cross_entropy(logits, torch.tensor([1, 2]), reduction="none")
    )
    torch.testing.assert_close(probe.score(torch.ones(2, 1, 12, dtype=torch.bool))[:, 0], found.score)


def test_a_callable_with_defaults_gets_the_logits_only() -> None:
    def power(logits: Tensor, exponent: float = 2.0) -> Tensor:
        return logits.pow(exponent).sum(-1)

    found = resolve("ixg")(Probe(seen("vit"), pictures(), question=power))

    torch.testing.assert_close(found.score, tiny("vit")(pictures()).pow(2).sum(-1))


def test_the_margin_is_the_difference_to_the_best_other_class() -> None:
    logits = tiny("vit")(pictures())
    targets = torch.tensor([[0, 1, 2, 3, 4]] * 2)

    score = resolve("ixg")(Probe(seen("vit"), pictures(), targets, "margin")).score.view(2, 5)

    for image in range(2):
        top = logits[image].topk(2).values
        for c in range(5):
            rival = top[1] if logits[image, c] == top[0] else top[0]
            torch.testing.assert_close(score[image, c], logits[image, c] - rival)


def test_a_score_function_must_return_one_number_per_row() -> None:
    with pytest.raises(ShapeError, match=r"one number per row \[2\], not \[2, 5\]"):
        resolve("ixg")(Probe(seen("vit"), pictures(), question=lambda logits: logits))


def test_invalid_score_functions_are_refused() -> None:
    with pytest.raises(SpecError, match="no question 'logits'; did you mean 'logit'"):
        Probe(seen("vit"), pictures(), question="logits")


# ── saturated probabilities ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("question", ["probability", "log-probability"])
@pytest.mark.parametrize("lead", [-30.0, 0.0, 3.0, 18.0, 30.0])
def test_the_gradient_of_a_sure_answer_is_not_rounded_away(question: str, lead: float) -> None:
    """In float32 1 − p is 0 from a lead of 17 on, and with it the class's own part of the gradient."""
    logits = torch.randn(3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([4, 0, 9])
    logits[torch.arange(3), targets] = logits.scatter(1, targets[:, None], -torch.inf).logsumexp(1) + lead
    single = logits.float().requires_grad_()
    p = logits.softmax(-1)
    others = p.scatter(1, targets[:, None], 0.0)
    slow = torch.zeros_like(p).scatter(1, targets[:, None], others.sum(1, keepdim=True)) - others
    slow = slow * p.gather(1, targets[:, None]) if question == "probability" else slow

    said = resolve_score_function(question)(single, targets)
    said.sum().backward()

    torch.testing.assert_close(single.grad.double(), slow, rtol=1e-5, atol=0)
    value = p.gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(said.double(), value if question == "probability" else value.log(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("question", ["probability", "log-probability"])
@pytest.mark.parametrize("logits", [[3.0, -torch.inf, -torch.inf], [3.0], [200.0, -200.0, 0.0]])
def test_an_answer_without_rivals_has_no_gradient(question: str, logits: list[float]) -> None:
    given = torch.tensor([logits], requires_grad=True)
    said = resolve_score_function(question)(given, torch.tensor([0]))
    said.sum().backward()

    assert said.item() == (1 if question == "probability" else 0)
    assert given.grad.abs().max() < 1e-30


# ── several labels ───────────────────────────────────────────────────────────────────────────────


def test_the_sigmoid_is_of_the_class_alone() -> None:
    """Against autograd on the formula 1 / (1 + e⁻ᶻ), for several targets of an image."""
    model, targets = tiny("vit"), torch.tensor([[0, 3], [4, 1]])
    found = resolve("ixg")(Probe(seen("vit"), pictures(), targets, "sigmoid"))

    tokens = seen("vit").embed(pictures()).detach().requires_grad_()
    hidden = tokens
    for block in model.blocks:
        hidden = block(hidden)
    logits = model.forward_head(model.norm(hidden))
    expected = 1 / (1 + (-logits.gather(1, targets)).exp())
    torch.testing.assert_close(found.score, expected.flatten().detach(), rtol=1e-12, atol=1e-14)
    for column in range(2):
        (gradient,) = torch.autograd.grad(expected[:, column].sum(), tokens, retain_graph=True)
        map_of_column = (tokens * gradient).sum(-1)[:, 1:].detach()
        torch.testing.assert_close(found.patches[column::2], map_of_column, rtol=1e-10, atol=1e-13)


def test_other_classes_do_not_change_a_sigmoid() -> None:
    logits = torch.randn(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    resolve_score_function("sigmoid")(logits, torch.tensor([1, 4])).sum().backward()

    assert (logits.grad != 0).nonzero().tolist() == [[0, 1], [1, 4]]


@pytest.mark.parametrize("z", [-200.0, -30.0, 0.0, 3.0, 18.0, 30.0])
def test_the_gradient_of_a_sure_sigmoid_is_not_rounded_away(z: float) -> None:
    single = torch.tensor([[0.0, z]], requires_grad=True)

    value = resolve_score_function("sigmoid")(single, torch.tensor([1]))
    value.sum().backward()

    exact = torch.tensor(z, dtype=torch.float64)
    torch.testing.assert_close(single.grad[0, 1].double(), exact.sigmoid() * (-exact).sigmoid(), rtol=1e-5, atol=1e-38)
    torch.testing.assert_close(value[0].double(), exact.sigmoid(), rtol=1e-6, atol=1e-38)


def test_subsets_and_black_boxes_support_the_sigmoid() -> None:
    import vitreous

    logits = tiny("vit")(pictures()).detach()
    probe = Probe(seen("vit"), pictures(), torch.tensor([0, 1]), "sigmoid")
    box = vitreous.wrap(tiny("vit"), black_box=True)
    found = vitreous.explain(box, pictures(), [[0, 2], [1, 3]], "rise(masks=3)", "sigmoid")

    whole = probe.score(torch.ones(2, 1, 12, dtype=torch.bool))[:, 0]
    torch.testing.assert_close(whole, logits.gather(1, torch.tensor([[0], [1]]))[:, 0].sigmoid())
    torch.testing.assert_close(found.score, logits.gather(1, torch.tensor([[0, 2], [1, 3]])).sigmoid().flatten())
    assert not found.signed
    assert found.provenance["question"] == "sigmoid"


def test_captions_of_a_sigmoid_contain_its_probability() -> None:
    import vitreous
    from vitreous.draw.captions import describe_target

    found = vitreous.explain(seen("vit"), pictures(), 2, "ixg", "sigmoid")

    assert describe_target(found[0]).endswith(f"{100 * tiny('vit')(pictures())[0, 2].sigmoid():.1f} %")
