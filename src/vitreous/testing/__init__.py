"""Contract tests for methods, metrics and models, built-in or third-party.

For example, `vitreous.testing.check_method("genatt")`.
"""

from vitreous.testing.contract import SHAPE as SHAPE
from vitreous.testing.contract import ContractError as ContractError
from vitreous.testing.contract import Counter as Counter
from vitreous.testing.contract import fingerprint as fingerprint
from vitreous.testing.contract import randomise as randomise
from vitreous.testing.contract import require as require
from vitreous.testing.contract import tiny_vits as tiny_vits
from vitreous.testing.methods import check_method as check_method
from vitreous.testing.metrics import check_metric as check_metric
from vitreous.testing.models import check_model as check_model
