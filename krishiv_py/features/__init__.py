"""Features for training and for serving: their log, training sets, and a proof that both are equal (docs/features.md)."""

from krishiv_py.connectors.sinks.features import FeatureLog, FeatureTable
from krishiv_py.features.parity import Parity, check_parity
from krishiv_py.features.training import training_set

__all__ = ["FeatureLog", "FeatureTable", "Parity", "check_parity", "training_set"]


def __dir__() -> list[str]:
    return __all__
