"""Skip what needs packages that are not installed.

The library needs torch, timm and a few small packages; everything else is an extra. Where an extra is missing, its tests are
skipped with the name of the package, whether they import it themselves or the library does.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

EXTRAS = (
    "beartype", "cachetools", "datasets", "fastapi", "h5py", "httpx", "httpx2", "hypothesis", "mkdocs", "pandas", "playwright", "pyarrow",
    "pydantic", "ray", "schemathesis", "scipy", "skimage", "sklearn", "transformers", "uvicorn", "yaml",
)  # fmt: skip
FOLDERS = {  # packages without which nothing in a folder of tests can run
    "bench": ("cachetools", "pandas", "pyarrow", "pydantic"),
    "benchmarks": ("pandas", "pyarrow"),
    "cluster": ("cachetools", "pandas", "pyarrow", "pydantic", "ray"),
    "report": ("cachetools", "pandas", "pyarrow", "pydantic"),
    "study": ("cachetools", "pandas", "pyarrow", "pydantic"),
    "web": ("fastapi", "uvicorn", "cachetools"),
}


def is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a broken installation, or a stand-in without a spec
        return False


def missing_package(problem: BaseException | None) -> str:
    """Return the extra whose absence raised an exception, or an exception that it replaced; else an empty string."""
    while problem is not None:
        name = (problem.name or "").split(".")[0] if isinstance(problem, ModuleNotFoundError) else ""
        if name in EXTRAS and not is_installed(name):
            return name
        problem = problem.__cause__ or problem.__context__
    return ""


def skip_folders(items: list[pytest.Item]) -> None:
    """Mark the tests of folders whose packages are missing."""
    missing = {folder: [n for n in names if not is_installed(n)] for folder, names in FOLDERS.items()}
    for item in items:
        for folder in item.path.parts:
            if missing.get(folder):
                item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing[folder])}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Report a test that failed for a missing package as skipped."""
    package = "" if call.excinfo is None else missing_package(call.excinfo.value)
    report = yield
    if package and report.failed:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: needs {package}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Report a module that cannot be imported for a missing package as skipped."""
    report = yield
    if report.failed:
        for package in EXTRAS:
            if f"No module named '{package}" in str(report.longrepr) and not is_installed(package):
                report.outcome = "skipped"
                report.longrepr = (str(collector.path), 0, f"Skipped: needs {package}")
                break
    return report
