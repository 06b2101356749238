"""Conformance kit: tests for resuming, elasticity, coverage and mixtures.

The `assert_...` functions take a *factory* of any iterable with `state_dict` and `load_state_dict`,
on itself or on its iterators, from any library; `state=` and `load=` adapt other interfaces.
`assert_source`, `assert_order`, `assert_rule` and `assert_fold` test one part. `pipelines` draws
random pipelines for property tests. `CrashingDisk` and `SimulatedScheduler` simulate the file system and threads.
"""

from .asserts import assert_covers, assert_mixture, assert_same_run
from .drawing import pipelines
from .parts import assert_fold, assert_order, assert_rule, assert_source
from .recipes import build, show
from .resume import assert_elastic, assert_resumes
from .simulate import Crash, CrashingDisk, SimulatedScheduler

__all__ = [
    "Crash",
    "CrashingDisk",
    "SimulatedScheduler",
    "assert_covers",
    "assert_elastic",
    "assert_fold",
    "assert_mixture",
    "assert_order",
    "assert_resumes",
    "assert_rule",
    "assert_same_run",
    "assert_source",
    "build",
    "pipelines",
    "show",
]
