"""Bayesian additive model of the scores of patch subsets: closed forms of its posterior.

Subsets come in complementary pairs. Half the difference of the scores of a subset S and its complement is modelled as

    (t(S) − t(S̄)) / 2 = a function of the size + Σⱼ xⱼ wⱼ + noise,    xⱼ = [j ∈ S] − |S| / p,

where the weights w are a combination of given maps plus a Gaussian deviation. The sum of the two scores does not depend on
w, because x changes its sign between complements, and would only add noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LENGTH, RIDGE = 0.5, 0.05  # of the covariance exp((cosine − 1) / LENGTH) + RIDGE I
RATIOS = torch.logspace(-3, 5, 33, dtype=torch.float64)  # noise variance / prior variance of a weight
FLAT = -RATIOS.log() / 2  # log prior of the ratios where the standard deviation of the deviations has a flat prior
DEVIATION = 0.42  # scale of the half-Cauchy prior of deviation / noise (standard deviations), times √patches
RANK_TOLERANCE = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class WeightPosterior:
    """Posterior of the weights of all patches, for k targets of one image.

    Attributes
    ----------
    mean
        Posterior mean of the weights, which add up to 0.
    covariance
        Posterior covariance of the weights, or the expected product of their errors.
    noise
        Standard deviation of half-differences around the additive model.
    """

    mean: Float[Tensor, "k p"]
    covariance: Float[Tensor, "k p p"]
    noise: Float[Tensor, " k"]

    @property
    def stderr(self) -> Float[Tensor, "k p"]:
        """Posterior standard deviation of every weight."""
        return self.covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()

    def target(self, index: int) -> WeightPosterior:
        """Posterior of one of the targets."""
        rows = slice(index, index + 1)
        return WeightPosterior(self.mean[rows], self.covariance[rows], self.noise[rows])

    def rank_error(self) -> Float[Tensor, " k"]:
        """Expected share of the pairs of patches that the mean puts into the wrong order."""
        patches = self.mean.shape[1]
        if patches < 2:
            return self.mean.new_zeros(len(self.mean))
        variance = self.covariance.diagonal(dim1=1, dim2=2)
        spread = (variance[:, :, None] + variance[:, None] - 2 * self.covariance).clamp(min=0).sqrt()
        gap = (self.mean[:, :, None] - self.mean[:, None]).abs()
        wrong = torch.special.ndtr(-gap / spread.clamp(min=torch.finfo(gap.dtype).tiny))
        above = torch.ones(patches, patches, dtype=torch.bool, device=gap.device).triu(1)
        return wrong[:, above].mean(1)


def weight_covariances(features: Float[Tensor, "p d"], maps: Float[Tensor, "k m p"]) -> list[Float[Tensor, "k p p"]]:
    """Prior covariances of the deviations, up to a factor each: the assumed one, and one that does not depend on the maps.

    Patches with similar features deviate alike: exp((cosine − 1) / LENGTH) of the centred features, plus RIDGE on the
    diagonal. In the first covariance the error of a map may be large where the map is large: standard deviations are
    multiplied by the mean of 1 and |map| / mean |map|, averaged over the maps. Without maps there is one covariance.
    """
    centred = features - features.mean(0)
    directions = centred / centred.norm(dim=1, keepdim=True).clamp(min=torch.finfo(centred.dtype).tiny)
    similarity = torch.exp((directions @ directions.T - 1) / LENGTH)
    similarity = similarity + RIDGE * torch.eye(len(features), dtype=features.dtype, device=features.device)
    similarity = similarity.expand(len(maps), -1, -1)
    if not maps.shape[1]:
        return [similarity]
    size = (maps - maps.mean(-1, keepdim=True)).abs()
    size = size / size.mean(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)
    scale = (1 + size.mean(1)) / 2
    return [scale[:, :, None] * similarity * scale[:, None], similarity]


@dataclass(frozen=True, slots=True, eq=False)
class AdditiveFit:
    """Half-differences in a basis in which the data does not mix the deviations, for k targets of one image.

    Attributes
    ----------
    design
        Subsets as rows, each less its mean.
    differences
        Half the difference of the scores of the first and the second subset.
    maps
        Prior means up to a factor each, less their means.
    inverse
        Pseudo-inverse of what has a flat prior: the maps and the size effect.
    turned
        Deviations that belong to independent coefficients.
    values
        Information of the data on every coefficient.
    pull
        Correlation of every coefficient with what the maps and the size leave over.
    power
        Sum of squares of what they leave over.
    degrees
        Its degrees of freedom.
    """

    design: Float[Tensor, "pairs p"]
    differences: Float[Tensor, "k pairs"]
    maps: Float[Tensor, "k m p"]
    inverse: Float[Tensor, "k q pairs"]
    turned: Float[Tensor, "k p p"]
    values: Float[Tensor, "k p"]
    pull: Float[Tensor, "k p"]
    power: Float[Tensor, "k 1"]
    degrees: Int[Tensor, " k"]

    def shrinkage(self) -> Float[Tensor, "k ratios p"]:
        """Factor between `pull` and the posterior mean of every coefficient, for each of `RATIOS`."""
        return 1 / (RATIOS.to(self.values)[:, None] + self.values[:, None])

    def misfit(self) -> Float[Tensor, "k ratios"]:
        """Sum of squares that the additive model leaves over, for each of `RATIOS`."""
        explained = (self.pull.square()[:, None] * self.shrinkage()).sum(2)
        return (self.power - explained).clamp(min=1e-12 * self.power + 1e-300)

    def evidence(self, log_prior: Float[Tensor, " ratios"]) -> Float[Tensor, "k ratios"]:
        """Log marginal likelihood of each of `RATIOS` plus its log prior, up to a constant of the data."""
        complexity = torch.log1p(self.values[:, None] / RATIOS.to(self.values)[:, None]).sum(2)
        return log_prior.to(self.values) - 0.5 * (self.degrees[:, None] * self.misfit().log() + complexity)

    def posterior(self, log_prior: Float[Tensor, " ratios"]) -> WeightPosterior:
        """Posterior of the weights, averaged over `RATIOS` by their marginal likelihood and their prior.

        Parameters
        ----------
        log_prior
            Logarithm of the prior of every ratio of `RATIOS`, up to a constant.
        """
        patches = self.design.shape[1]
        shrink = self.shrinkage()
        share = torch.softmax(self.evidence(log_prior), 1)
        variance = self.misfit() / (self.degrees[:, None] - 2)

        coefficients = self.pull[:, None] * shrink  # [k ratios p]
        deviation = (self.turned @ (share[..., None] * coefficients).sum(1)[..., None])[..., 0]
        inner = torch.diag_embed(((share * variance)[..., None] * shrink).sum(1))
        inner = inner + (share[..., None] * coefficients).mT @ coefficients
        spread = self.turned @ inner @ self.turned.mT - deviation[:, :, None] * deviation[:, None]

        # the maps' coefficients are fitted to what the deviations leave over
        count, noise = self.maps.shape[1], (share * variance).sum(1)
        fitted = (self.inverse @ (self.differences - deviation @ self.design.T)[..., None])[:, :count, 0]
        refitted = torch.eye(patches).to(self.design) - self.maps.mT @ (self.inverse @ self.design)[:, :count]
        spread = refitted @ spread @ refitted.mT
        of_maps = (self.inverse @ self.inverse.mT)[:, :count, :count]
        spread = spread + noise[:, None, None] * (self.maps.mT @ of_maps @ self.maps)
        mean = deviation + (fitted[:, None] @ self.maps)[:, 0]
        centring = torch.eye(patches).to(self.design) - 1 / patches
        return WeightPosterior(mean @ centring, centring @ spread @ centring, noise.sqrt())


def additive_fits(
    keep: Bool[Tensor, "pairs p"],
    differences: Float[Tensor, "k pairs"],
    maps: Float[Tensor, "k m p"],
    covariances: Sequence[Float[Tensor, "k p p"]],
) -> list[AdditiveFit]:
    """Decompose the data of one image under each prior covariance; parameters as for `weight_posterior`."""
    targets = len(differences)
    inside = keep.to(differences)
    size = inside.mean(1, keepdim=True)
    design = inside - size  # [s p]
    maps = maps - maps.mean(-1, keepdim=True)
    sizes = torch.cat([size - 0.5, (size - 0.5) ** 3], 1).expand(targets, -1, -1)
    basis = torch.cat([design @ maps.mT, sizes], 2)  # [k s q]
    columns, inverse = orthonormal(basis)
    rest = differences - (columns @ (columns.mT @ differences[:, :, None]))[..., 0]
    projected = columns.mT @ design
    gram = design.T @ design - projected.mT @ projected
    degrees = design.shape[0] - (columns.square().sum(1) > 0.5).sum(1)  # [k]
    power = rest.square().sum(1, keepdim=True)
    correlation = design.T @ rest[:, :, None]  # [k p 1]

    fits = []
    for covariance in covariances:
        # deviations are `root` times independent coefficients; in the basis `turned` the data does not mix them either
        root = torch.linalg.cholesky(covariance)
        values, vectors = torch.linalg.eigh(root.mT @ gram @ root)
        values, turned = values.clamp(min=0), root @ vectors
        pull = (turned.mT @ correlation)[..., 0]  # [k p]
        fits.append(AdditiveFit(design, differences, maps, inverse, turned, values, pull, power, degrees))
    return fits


def weight_posterior(
    keep: Bool[Tensor, "pairs p"],
    differences: Float[Tensor, "k pairs"],
    maps: Float[Tensor, "k m p"],
    covariances: Sequence[Float[Tensor, "k p p"]],
) -> WeightPosterior:
    """Posterior of the weights, in double precision.

    The coefficients of the maps and of the size effect (odd powers of size − ½) have a flat prior. The noise variance has
    Jeffreys' prior. The ratio of noise and prior variance is averaged over `RATIOS` by marginal likelihood. For the mean
    its prior is `deviation_prior`, which keeps few scores from moving it far from the maps. The covariance is the expected
    squared error of that mean under a flat prior of the deviations, which does not trust the maps; one that is flat in the
    logarithm would favour no deviations at all where the scores say little, and give intervals that are too narrow. It is
    averaged over all `covariances` by marginal likelihood.

    Parameters
    ----------
    keep
        First subset of every pair; the second one is its complement.
    differences
        Half the difference of the scores of the first and the second subset.
    maps
        Prior means up to a factor each.
    covariances
        Prior covariances of the deviations from the maps, up to a factor. The mean is that of the first.
    """
    fits = additive_fits(keep, differences, maps, covariances)
    mean = fits[0].posterior(deviation_prior(keep.shape[1])).mean
    evidence = torch.stack([fit.evidence(FLAT).logsumexp(1) for fit in fits])
    spread, noise = torch.zeros_like(covariances[0]), torch.zeros_like(evidence[0])
    for share, fit in zip(torch.softmax(evidence, 0), fits, strict=True):
        careful = fit.posterior(FLAT)
        gap = careful.mean - mean
        spread = spread + share[:, None, None] * (careful.covariance + gap[:, :, None] * gap[:, None])
        noise = noise + share * careful.noise.square()
    return WeightPosterior(mean, spread, noise.sqrt())


def deviation_prior(patches: int) -> Float[Tensor, " ratios"]:
    """Log prior of `RATIOS`, up to a constant: deviation / noise is half Cauchy with scale `DEVIATION` / √patches.

    With that scale the deviations of all patches together change a score by about a fifth of the noise. Under a flat prior
    of the deviations, few scores move the map further from the prior mean than they should; the half Cauchy's tail lets many
    scores move it.
    """
    deviation = RATIOS.rsqrt()
    return deviation.log() - torch.log1p((deviation * patches**0.5 / DEVIATION).square())


def orthonormal(basis: Float[Tensor, "k s q"]) -> tuple[Float[Tensor, "k s q"], Float[Tensor, "k q s"]]:
    """Orthonormal basis of the columns, with zeros for dependent ones, and the pseudo-inverse."""
    length = basis.norm(dim=1, keepdim=True)
    length = torch.where(length > 0, length, torch.ones_like(length))
    left, values, right = torch.linalg.svd(basis / length, full_matrices=False)
    independent = values > RANK_TOLERANCE * values[:, :1]
    columns = left * independent[:, None]
    weights = torch.where(independent, 1 / values.clamp(min=torch.finfo(values.dtype).tiny), 0)
    return columns, (right.mT * weights[:, None]) @ left.mT / length.mT
