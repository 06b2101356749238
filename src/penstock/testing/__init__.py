"""The conformance kit: does it resume, is it elastic, is anything lost or doubled, does the mixture
hold?

The `assert_...` functions take a *factory* of any iterable that has `state_dict` and
`load_state_dict`, on itself or on its iterators, ours or not; `state=` and `load=` adapt others.
`assert_source`, `assert_order`, `assert_rule` and `assert_fold` take one part by itself.
`pipelines` draws random trees of all our steps for property tests, `TornDisk` and `SimSched` stand
in for the file system and the threads.
"""

from .asserts import assert_covers, assert_mixture, assert_same_run
from .drawing import pipelines
from .parts import assert_fold, assert_order, assert_rule, assert_source
from .recipes import build, show
from .resume import assert_elastic, assert_resumes
from .simulate import Crash, SimSched, TornDisk

__all__ = [
    "Crash",
    "SimSched",
    "TornDisk",
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
