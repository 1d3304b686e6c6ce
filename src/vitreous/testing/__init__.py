"""Contract tests for methods, metrics and models, built-in or third-party.

For example, `vitreous.testing.check_method("genatt")`.
"""

from vitreous.testing.contract import SHAPE, ContractError, Counter, fingerprint, randomise, require, tiny_vits
from vitreous.testing.methods import check_method
from vitreous.testing.metrics import check_metric
from vitreous.testing.models import check_model

__all__ = [
    "SHAPE",
    "ContractError",
    "Counter",
    "check_method",
    "check_metric",
    "check_model",
    "fingerprint",
    "randomise",
    "require",
    "tiny_vits",
]


def __dir__() -> list[str]:
    return sorted(__all__)
