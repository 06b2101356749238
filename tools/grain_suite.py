"""Run Grain's own test suite against `penstock.compat.grain`, with only the imports changed.

Takes a checkout of Grain. Copies its test files to a temporary folder, rewrites `grain` in their
imports to `grain_names`, and runs each file with pytest. `grain_names` is a package that this
script makes in memory: its modules have the paths of Grain's, and their names come from
`penstock.compat.grain`. Private classes that only wrap a public method stand for that method.
A test that needs any other private name counts as `internals`.

A method passes if all its parameters pass. Methods that pass only with `order="grain"` count as
`order`. The tests need `absl-py`, `parameterized` and `jax`.

    python tools/grain_suite.py CHECKOUT                      run all, print the table
    python tools/grain_suite.py CHECKOUT --json RESULTS       write the results as JSON too
    python tools/grain_suite.py CHECKOUT --only mix_test      some files
    python tools/grain_suite.py --read RESULTS                print the table of results
    python tools/grain_suite.py --read RESULTS --failures     and each failure
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

NAMES = "grain_names"
OURS = "penstock.compat.grain"
RESULT = "GRAIN_SUITE_RESULT"
CHECKOUT = "GRAIN_SUITE_CHECKOUT"
ORDER = "GRAIN_SUITE_ORDER"
SECONDS_PER_TEST = 20
SECONDS_PER_FILE = 900

Outcome = dict[str, str]
"""The status of a test (`passed`, `failed` or `skipped`) and the first line of its error."""

Results = dict[str, dict[str, dict[str, str]]]
"""Test file -> method -> class and reason."""

SERVED_BY_CHECKOUT = (
    "_src.core.tree_lib",
    "_src.core.pytest",
    "_src.python.dataset.transformations.packing_packed_batch",
    "_src.python.dataset.transformations.testing_util",
)
"""Helper modules of the tests, which run as they are."""

LEFT_OUT = {
    "core/jax_import_smoke_test.py": "imports of JAX",
    "core/monitoring_test.py": "Grain's telemetry",
    "core/multiprocessing_test.py": "Grain's processes",
    "core/parallel_test.py": "Grain's thread pool",
    "core/profiler_test.py": "Grain's profiler",
    "core/prometheus_monitoring_test.py": "Grain's telemetry",
    "core/py_version_test.py": "the version of Python",
    "core/tf_import_smoke_test.py": "imports of TensorFlow",
    "core/traceback_util_test.py": "Grain's tracebacks",
    "core/tree_lib_jax_test.py": "Grain's trees",
    "core/tree_lib_test.py": "Grain's trees",
    "python/dataset/stats_test.py": "Grain's statistics",
    "python/dataset/stats_utils_test.py": "Grain's statistics",
    "python/dataset/transformations/autotune_test.py": "has no tests",
    "python/experimental/device_put/device_put_test.py": "has no tests",
    "python/grain_logging_test.py": "Grain's log lines",
    "python/ipc/queue_test.py": "queues between Grain's processes",
    "python/ipc/variable_size_queue_test.py": "queues between Grain's processes",
}
"""Files that test only private modules of Grain, with what they test."""

DIFFERENCES: dict[str, str] = {}
"""Patterns of `file::Class::method`, with the reason why the method fails on purpose."""


# ---------------------------------------------------------------- names of Grain


class PrivateName(AttributeError):
    """A test uses a private name of Grain that has no counterpart."""


uses = list[str]()
"""Private names that the running test has used."""


class Placeholder(type):
    """Type of the classes that stand for private names without a counterpart."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _report_use(cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        raise _report_use(f"{cls.__name__}.{name}")

    def __instancecheck__(cls, instance: object) -> bool:
        raise _report_use(cls.__name__)


def _report_use(name: str) -> PrivateName:
    uses.append(name)
    return PrivateName(f"private name of Grain: {name}")


def _apply(method: str) -> Callable[..., Any]:
    """Return a constructor that calls a method of the first argument."""

    def construct(parent: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(parent, method)(*args, **kwargs)

    return construct


def _apply_transform(method: str) -> Callable[..., Any]:
    """Return a constructor `(parent, transform, seed)` that calls a method of the parent."""

    def construct(parent: Any, transform: Any, seed: Any = None) -> Any:
        options = {} if seed is None else {"seed": seed}
        return getattr(parent, method)(transform, **options)

    return construct


def _dataset(kind: str, method: str) -> Callable[..., Any]:
    """Return a constructor that calls a static method of a kind of dataset."""

    def construct(*args: Any, **kwargs: Any) -> Any:
        return getattr(getattr(importlib.import_module(OURS), kind), method)(*args, **kwargs)

    return construct


def _mix(kind: str) -> Callable[..., Any]:
    def construct(parents: Any, proportions: Any = None, selection_map: Any = None) -> Any:
        datasets = getattr(importlib.import_module(OURS), kind)
        if selection_map is not None:
            return datasets.select_from_datasets(parents, selection_map)
        return datasets.mix(parents, proportions)

    return construct


def _prefetch_with_processes(
    ds: Any, num_workers: int = 0, buffer_size: int = 1, worker_init_fn: Any = None, **others: Any
) -> Any:
    """Call `mp_prefetch`, as `multiprocess_prefetch` of Grain does."""
    options = importlib.import_module(OURS).MultiprocessingOptions(num_workers, buffer_size)
    return ds.mp_prefetch(options, worker_init_fn, others.get("sequential_slice", False))


def _make_batch(values: Sequence[Any]) -> Any:
    ds = importlib.import_module(OURS).MapDataset.source(values)
    return ds.batch(max(1, len(values)))[0]


class _ProcessPrefetch:
    """Constructor of a dataset that prefetches with processes."""

    def __new__(cls, parent: Any, multiprocessing_options: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("always_report_worker_state", None)
        return parent.mp_prefetch(multiprocessing_options, *args, **kwargs)


EQUIVALENTS: dict[str, Any] = {
    "BatchIterDataset": _apply("batch"),
    "BatchMapDataset": _apply("batch"),
    "ConcatenateMapDataset": _dataset("MapDataset", "concatenate"),
    "FilterIterDataset": _apply_transform("filter"),
    "FilterMapDataset": _apply_transform("filter"),
    "MapIterDataset": _apply_transform("map"),
    "MapMapDataset": _apply_transform("map"),
    "MapWithIndexIterDataset": _apply_transform("map_with_index"),
    "MapWithIndexMapDataset": _apply_transform("map_with_index"),
    "MixedIterDataset": _mix("IterDataset"),
    "MixedMapDataset": _mix("MapDataset"),
    "PrefetchIterDataset": _apply("to_iter_dataset"),
    "ProcessPrefetchIterDataset": _ProcessPrefetch,
    "RandomMapIterDataset": _apply_transform("random_map"),
    "RandomMapMapDataset": _apply_transform("random_map"),
    "RangeMapDataset": _dataset("MapDataset", "range"),
    "ReindexMapDataset": _apply("slice"),
    "RepeatMapDataset": _apply("repeat"),
    "ShuffleMapDataset": _apply("shuffle"),
    "SliceMapDataset": _apply("slice"),
    "make_batch": _make_batch,
    "multiprocess_prefetch": _prefetch_with_processes,
}
"""Private classes and functions of Grain, with calls of the public API that do the same."""


def find_name(path: str, name: str) -> Any:
    """Return the counterpart of a name in a module of Grain.

    Args:
        path: the module, relative to `grain`.
        name: the name.

    Returns:
        The public object, an equivalent call, or a `Placeholder`.
    """
    if name == "tree_lib":
        return importlib.import_module(f"{NAMES}._src.core.tree_lib")
    if path.startswith("_src") and name in EQUIVALENTS:
        return EQUIVALENTS[name]
    if path.startswith("_src"):
        places = [f"{OURS}.{path}", OURS]
    else:
        places = [f"{OURS}.{path}".rstrip(".")]
    subpackages = ("experimental", "checkpoint", "multiprocessing", "transforms", "sharding")
    if path.startswith("_src"):
        places += [f"{OURS}.{part}" for part in (*subpackages, "python", "python.experimental")]
    for place in places:
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        if hasattr(module, name) and not isinstance(getattr(module, name), ModuleType):
            return getattr(module, name)
    return Placeholder(f"{path}.{name}", (), {})


class NamesModule(ModuleType):
    """A module with the path of one of Grain's, whose names are looked up when they are used."""

    def __getattr__(self, name: str) -> Any:
        path = self.__name__.partition(".")[2]
        if name.startswith("__") or _has_module(f"{path}.{name}".lstrip(".")):
            raise AttributeError(name)
        value = find_name(path, name)
        if not isinstance(value, Placeholder):
            setattr(self, name, value)
        return value


def _checkout_file(path: str) -> Path:
    return Path(os.environ[CHECKOUT], "grain", *path.split("."))


def _has_module(path: str) -> bool:
    if path in ("python", "experimental", "proto.execution_summary_pb2"):
        return True
    file = _checkout_file(path)
    return file.is_dir() or file.with_suffix(".py").exists()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import `grain_names` and its modules."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Return the spec of a module of `grain_names`."""
        package, _, rest = fullname.partition(".")
        if package != NAMES or not _has_module(rest):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return an empty module."""
        return NamesModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module: with the public names of ours, or from the checkout."""
        path = module.__name__.partition(".")[2]
        if path in SERVED_BY_CHECKOUT:
            file = _checkout_file(path).with_suffix(".py")
            exec(compile(rewrite(file.read_text()), str(file), "exec"), vars(module))
        elif not path:
            module.__file__ = str(_checkout_file("__init__").with_suffix(".py"))
            vars(module).update(_public(importlib.import_module(OURS)))
        elif not path.startswith(("_src", "proto")):
            vars(module).update(_public(importlib.import_module(f"{OURS}.{path}")))


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def rewrite(text: str) -> str:
    """Return the text of a test file with `grain` in its imports replaced.

    >>> rewrite("import grain\\nfrom grain._src.python import load")
    'import grain_names as grain\\nfrom grain_names._src.python import load'
    """
    for base in re.findall(r'@absltest\.skipThisClass\("Base class"\)\nclass (\w+)', text):
        if not re.search(rf"(?m)^class \w+\({base}\)", text):  # its subclasses are not public
            text = re.sub(rf"@absltest\.skipThisClass\(.*\)\n(class {base}\b)", r"\1", text)
    text = re.sub(r"(?m)^(\s*)import grain(?=\s*(#|$))", rf"\1import {NAMES} as grain", text)
    return re.sub(r"(?m)^(\s*)(from|import) grain(?=[. ])", rf"\1\2 {NAMES}", text)


# ---------------------------------------------------------------- inside pytest


def pytest_configure(config: Any) -> None:
    """Prepare the process: names, flags, the default order."""
    if RESULT not in os.environ:
        return
    sys.meta_path.insert(0, Finder())
    flags: Any = importlib.import_module("absl.flags")
    importlib.import_module("absl.testing.absltest")
    flags.FLAGS(["suite"])
    ours = importlib.import_module(OURS)
    if order := os.environ.get(ORDER):
        for function in (ours.MapDataset.source, ours.MapDataset.range, ours.DataLoader.__init__):
            function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), "order": order}


outcomes_by_test = dict[str, Outcome]()
"""Outcome of each test of this process."""


def pytest_runtest_setup(item: Any) -> None:
    """Start the clock of a test."""

    def stop(number: int, _: FrameType | None) -> None:
        raise TimeoutError(f"the test takes more than {SECONDS_PER_TEST} s")

    uses.clear()
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS_PER_TEST)


def pytest_runtest_logreport(report: Any) -> None:
    """Store the outcome of a test."""
    if report.when == "teardown":
        signal.alarm(0)
    known = outcomes_by_test.get(report.nodeid)
    if known is not None and (known["status"] == "failed" or report.when == "teardown"):
        return
    if report.when == "setup" and report.passed:
        return
    message = ""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = " ".join(str(crash.message if crash else report.longrepr).split())[:300]
    outcomes_by_test[report.nodeid] = {
        "status": report.outcome,
        "message": message,
        "private": uses[-1] if uses else "",
    }


def pytest_sessionfinish(session: Any) -> None:
    """Write the outcomes."""
    if RESULT in os.environ:
        Path(os.environ[RESULT]).write_text(json.dumps(outcomes_by_test))


# ---------------------------------------------------------------- running the files


def list_methods(text: str) -> dict[str, list[str]]:
    """Return the test methods of the classes of a file, those of base classes in it included."""
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    methods = dict[str, list[str]]()
    for node in classes:
        names = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
        names = [name for name in names if name.startswith("test")]
        for parent in node.bases:
            if isinstance(parent, ast.Name):
                names += methods.get(parent.id, [])
        methods[node.name] = names
    return methods


def find_method(methods: dict[str, list[str]], test: str) -> str:
    """Return `Class::method` of a test, without its parameters.

    >>> find_method({"MixTest": ["test_len", "test_len_of"]}, "MixTest::test_len_of3 (5, 2)")
    'MixTest::test_len_of'
    """
    kind, _, name = test.partition("::")
    kinds = [known for known in methods if kind == known or kind.startswith(f"{known}_")]
    known_kind = max(kinds, key=len, default=kind)
    names = [known for known in methods.get(known_kind, []) if name.startswith(known)]
    return f"{known_kind}::{max(names, key=len, default=name)}"


def run_file(file: Path, checkout: Path, order: str) -> dict[str, Outcome]:
    """Run a test file of Grain, and return the outcome of each of its methods.

    Args:
        file: the file in the checkout.
        checkout: the root of the checkout.
        order: "penstock" or "grain".
    """
    methods = list_methods(file.read_text())
    with tempfile.TemporaryDirectory() as folder:
        copy, result = Path(folder, file.name), Path(folder, "result.json")
        copy.write_text(rewrite(file.read_text()))
        environment = dict(os.environ)
        environment |= {RESULT: str(result), CHECKOUT: str(checkout), "JAX_PLATFORMS": "cpu"}
        environment |= {ORDER: order} if order != "penstock" else {}
        paths = [str(Path(__file__).resolve().parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--maxfail=100000", "--tb=line"]
        command += ["-p", "grain_suite", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["-p", "no:hypothesispytest", f"--rootdir={folder}", str(copy)]
        error = ""
        try:
            run = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SECONDS_PER_FILE
            )
            error = " ".join(run.stdout.split())[-600:]
        except subprocess.TimeoutExpired:
            error = "the file takes too long"
        outcomes = dict[str, Outcome](
            cast("dict[str, Outcome]", json.loads(result.read_text())) if result.exists() else {}
        )
    known = {f"{kind}::{name}" for kind, names in methods.items() for name in names}
    tests = dict[str, Outcome]()
    for test, outcome in outcomes.items():
        if "::" not in test:
            continue
        method = find_method(methods, test.partition("::")[2])
        before = tests.get(method)
        if before is None or before["status"] != "failed":
            better = before is not None and before["status"] == "passed"
            tests[method] = before if better and outcome["status"] == "skipped" else outcome  # pyright: ignore[reportArgumentType]
    if not tests:
        tests = {method: {"status": "failed", "message": error, "private": ""} for method in known}
    return tests


def classify(method: str, outcome: Outcome, with_their_order: Outcome | None) -> tuple[str, str]:
    """Return the class of an outcome, and its reason.

    Args:
        method: `file::Class::method`.
        outcome: the outcome in the default order.
        with_their_order: the outcome with `order="grain"`, if it ran.
    """
    if outcome["status"] in ("passed", "skipped"):
        return outcome["status"], ""
    for pattern, reason in DIFFERENCES.items():
        if re.search(pattern, method):
            return "differs", reason
    last = outcome
    if with_their_order is not None:
        if with_their_order["status"] == "passed":
            return "order", 'passes with order="grain"'
        last = with_their_order
    if last.get("private"):
        return "internals", last["private"]
    private = re.search(r"has no attribute '(_\w+)'|does not have the attribute", last["message"])
    if private:
        return "internals", last["message"]
    return "missing", last["message"]


def run_suite(checkout: Path, only: str, output: Path | None) -> Results:
    """Run the files.

    Args:
        checkout: the root of the checkout.
        only: a pattern of the files to run.
        output: a file of results, to which those of each file are added.

    Returns:
        file -> method -> class and reason.
    """
    root = checkout / "grain" / "_src"
    results: Results = {}
    if output is not None and output.exists() and only:
        results = json.loads(output.read_text())
    for file in sorted(root.rglob("*_test.py")):
        name = file.relative_to(root).as_posix()
        if name in LEFT_OUT or not re.search(only, name):
            continue
        first = run_file(file, checkout, "penstock")
        failed = [method for method, outcome in first.items() if outcome["status"] == "failed"]
        second = run_file(file, checkout, "grain") if failed else {}
        results[name] = {}
        for method, outcome in sorted(first.items()):
            kind, reason = classify(f"{name}::{method}", outcome, second.get(method))
            results[name][method] = {"class": kind, "reason": reason}
        if output is not None:
            output.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
        print(f"{name}: {dict(count_classes(results[name]))}", file=sys.stderr, flush=True)
    return results


# ---------------------------------------------------------------- the table

CLASSES = ("passed", "order", "differs", "internals", "missing")


def count_classes(methods: dict[str, dict[str, str]]) -> Counter[str]:
    """Return the number of methods of each class."""
    return Counter(outcome["class"] for outcome in methods.values())


def format_table(results: Results) -> str:
    """Return the results as a Markdown table, by file."""
    head = [
        "file",
        "methods",
        "pass",
        'with `order="grain"`',
        "differ on purpose",
        "private",
        "miss",
    ]
    lines = [f"| {' | '.join(head)} |", f"|---{'|---:' * (len(head) - 1)}|"]
    total = Counter[str]()
    for name, methods in results.items():
        counts = count_classes(methods)
        total += counts
        lines.append(_row(f"`{name.rpartition('/')[2]}`", counts))
    return "\n".join([*lines, _row("all", total)])


def _row(label: str, counts: Counter[str]) -> str:
    numbers = [sum(counts[kind] for kind in CLASSES), *(counts[kind] for kind in CLASSES)]
    return f"| {label} | {' | '.join(map(str, numbers))} |"


def list_failures(results: Results) -> Iterator[str]:
    """Yield a line for each method that does not pass."""
    for name, methods in results.items():
        for method, outcome in methods.items():
            if outcome["class"] not in ("passed", "skipped"):
                yield f"{outcome['class']:9} {name}::{method}: {outcome['reason']}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("checkout", nargs="?", type=Path, help="a checkout of Grain")
    parser.add_argument("--only", default="", help="a pattern of the files to run")
    parser.add_argument(
        "--json", type=Path, help="write the results to this file (with --only, add them)"
    )
    parser.add_argument("--read", type=Path, help="read the results from this file, run nothing")
    parser.add_argument("--failures", action="store_true", help="list the failures")
    options = parser.parse_args(arguments)
    if (options.checkout is None) == (options.read is None):
        parser.error("give a checkout of Grain, or --read RESULTS")
    if options.read is not None:
        results = json.loads(options.read.read_text())
    else:
        checkout = options.checkout.resolve()
        if not (checkout / "grain" / "_src").is_dir():
            parser.error(f"{checkout} is no checkout of Grain: it has no folder grain/_src")
        results = run_suite(checkout, options.only, options.json)
    print(format_table(results))
    if options.failures:
        print("\n".join(["", *list_failures(results)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
