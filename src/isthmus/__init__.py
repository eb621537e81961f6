"""Federated graph learning: organisations that may not pool their graphs train graph models together.

>>> import isthmus
>>> results = isthmus.run("fedavg", rounds=2)
>>> 0 < results.metrics["test_accuracy"] <= 1
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from isthmus.version import VERSION

__version__ = VERSION

_MODULES = {
    "run": "isthmus.study.run",
    "run_study": "isthmus.study.run",
    "tune": "isthmus.study.tuning",
    "compare": "isthmus.report.compare",
    "write_report": "isthmus.report.report",
    "check_method": "isthmus.testing",
    "Party": "isthmus.data.party",
    "Border": "isthmus.data.party",
    "Cohort": "isthmus.data.cohort",
    "Schema": "isthmus.data.schema",
    "DataSet": "isthmus.data.pool",
    "Partition": "isthmus.data.partition",
    "Encoder": "isthmus.nn.encoders",
    "per_party": "isthmus.nn.per_party",
    "Method": "isthmus.methods.base",
    "Model": "isthmus.methods.base",
    "State": "isthmus.methods.base",
    "Averaging": "isthmus.methods.base",
    "Learning": "isthmus.methods.base",
    "LocalTraining": "isthmus.methods.training",
    "Site": "isthmus.federation.site",
    "action": "isthmus.federation.actions",
    "Answer": "isthmus.federation.answers",
    "Mail": "isthmus.federation.answers",
    "Federation": "isthmus.federation.verbs",
    "Each": "isthmus.federation.transport",
    "Models": "isthmus.federation.models",
    "Group": "isthmus.federation.models",
    "IsthmusError": "isthmus.errors",
    "load_model": "isthmus.study.model_files",
    "TrainedModel": "isthmus.study.models",
    "export_model": "isthmus.study.export",
    "load_results": "isthmus.saved",
    "SavedResults": "isthmus.saved",
    "Results": "isthmus.study.results",
    "Study": "isthmus.study.config",
    "load_graph": "isthmus.result_files",
}

__all__ = ["__version__", *_MODULES]

if TYPE_CHECKING:
    from isthmus.data.cohort import Cohort as Cohort
    from isthmus.data.partition import Partition as Partition
    from isthmus.data.party import Border as Border
    from isthmus.data.party import Party as Party
    from isthmus.data.pool import DataSet as DataSet
    from isthmus.data.schema import Schema as Schema
    from isthmus.errors import IsthmusError as IsthmusError
    from isthmus.federation.actions import action as action
    from isthmus.federation.answers import Answer as Answer
    from isthmus.federation.answers import Mail as Mail
    from isthmus.federation.models import Group as Group
    from isthmus.federation.models import Models as Models
    from isthmus.federation.site import Site as Site
    from isthmus.federation.transport import Each as Each
    from isthmus.federation.verbs import Federation as Federation
    from isthmus.methods.base import Averaging as Averaging
    from isthmus.methods.base import Learning as Learning
    from isthmus.methods.base import Method as Method
    from isthmus.methods.base import Model as Model
    from isthmus.methods.base import State as State
    from isthmus.methods.training import LocalTraining as LocalTraining
    from isthmus.nn.encoders import Encoder as Encoder
    from isthmus.nn.per_party import per_party as per_party
    from isthmus.report.compare import compare as compare
    from isthmus.report.report import write_report as write_report
    from isthmus.result_files import load_graph as load_graph
    from isthmus.saved import SavedResults as SavedResults
    from isthmus.saved import load_results as load_results
    from isthmus.study.config import Study as Study
    from isthmus.study.export import export_model as export_model
    from isthmus.study.model_files import load_model as load_model
    from isthmus.study.models import TrainedModel as TrainedModel
    from isthmus.study.results import Results as Results
    from isthmus.study.run import run as run
    from isthmus.study.run import run_study as run_study
    from isthmus.study.tuning import tune as tune
    from isthmus.testing import check_method as check_method


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import isthmus` alone loads neither torch nor PyG."""
    if name not in _MODULES:
        raise AttributeError(f"module 'isthmus' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
