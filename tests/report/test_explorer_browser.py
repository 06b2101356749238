"""The explorer in a browser: the page shows what a run delivers, and asks no other host."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.saves import read_states

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --window-size=1280,900"
).split()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver on the PATH"
    ),
]


class Page:
    """A page in a browser, and the server behind it."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url = driver, url

    def show(self, view: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}#{view}")

    def wait(self, script: str) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 30).until(lambda d: d.execute_script(f"return {script}"))

    def texts(self, selector: str) -> list[str]:
        script = f"Array.from(document.querySelectorAll({selector!r}), (e) => e.textContent)"
        return self.driver.execute_script(f"return {script}")

    def click(self, text: str) -> None:
        script = f"Array.from(document.querySelectorAll('button')).find((b) => b.textContent === {text!r})"
        self.driver.execute_script(f"{script}.click()")

    def check(self) -> None:
        """Raise if the page logged an error, or asked another host."""
        errors = [
            line
            for line in self.driver.get_log("browser")
            if line["level"] in ("SEVERE", "WARNING")
        ]
        assert not errors, errors
        for line in self.driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                assert url.startswith((self.url.split("?")[0], "about:", "data:", "chrome:")), url


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(executable_path=str(DRIVER)))
    servers = list[subprocess.Popen[str]]()

    def start(*arguments: Any) -> Page:
        command = [sys.executable, "-m", "penstock", "explore", *map(str, arguments), "--no-open"]
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        servers.append(server)
        assert server.stdout is not None
        return Page(driver, server.stdout.readline().strip())

    try:
        yield start
    finally:
        driver.quit()
        for server in servers:
            server.send_signal(signal.SIGINT)
        for server in servers:
            _, errors = server.communicate(timeout=30)
            assert server.returncode == 130 and errors == "penstock: stopped\n"


def test_the_page_shows_what_a_run_delivers(
    open_page: Callable[..., Page], mixture: Path, tmp_path: Path
) -> None:
    delivered = dict[int, list[str]]()
    with ps.Loader(ps.load(mixture), stats=tmp_path / "stats.jsonl") as loader:
        for step, _ in enumerate(loader):
            delivered[step] = [f"{source}[{index:,}]" for source, _, index in loader.keys()]
            if step == 99:
                ps.save(tmp_path / "run", loader)
            if step == 150:
                break
    page = open_page(mixture, "--state", tmp_path / "run", "--stats", tmp_path / "stats.jsonl")
    page.show("timeline")
    page.wait(
        "document.querySelectorAll('.chart canvas').length && document.querySelector('main tbody a')"
    )
    assert page.texts("main table tbody tr th bdi") == ["text", "math", "code"]
    for step in (0, 99, 150):
        page.show(f"step?step={step}")
        page.wait("document.querySelectorAll('.sample').length === 8")
        assert page.texts(".sample .name") == delivered[step]
    name = delivered[150][0]
    source, index = name[:-1].replace(",", "").split("[")
    page.show(f"document?source={source}&index={index}")
    page.wait("document.querySelector('main table tbody a')")
    steps = [int(text.replace(",", "")) for text in page.texts("main table tbody a")]
    assert [step for step in steps if step <= 150] == [
        step for step, names in delivered.items() if name in names
    ]
    page.show("live")
    page.wait("document.querySelectorAll('.facts.big dd').length")
    assert "The job has ended." in page.texts("main p")[0]
    page.show("what-if")
    page.wait("document.querySelector('.control input[type=number]')")
    page.wait("document.querySelector('main table')")
    page.driver.execute_script(
        "const i = document.querySelector('.control input[type=number]'); i.value = 5;"
        "i.dispatchEvent(new Event('input'))"
    )
    page.wait("document.querySelector('main p[role=status] a')")
    page.driver.execute_script("document.getElementById('name').value = 'edited.yaml'")
    page.click("Mixture file")
    page.wait("document.querySelector('main p code')")
    assert ps.load(tmp_path / "edited.yaml").plan.at(0)
    page.driver.execute_script("document.getElementById('name').value = 'changed'")
    page.click("Change of the run")
    page.wait("document.querySelector('main p code').textContent.endsWith('changed')")
    assert read_states(tmp_path / "changed")[0] == 100
    page.driver.execute_script("location.hash = 'compare?of=main&with=edited'")
    page.wait("document.querySelectorAll('.chart canvas').length === 2")
    first = page.wait("document.querySelector('main p[role=status] a')?.textContent")
    assert int(first) >= 100
    page.check()


def test_hostile_samples_are_shown_as_text(open_page: Callable[..., Page], tmp_path: Path) -> None:
    rows = [
        {
            "text": "<script>document.title='bad'</script><img src=x onerror=\"document.title='bad'\">"
        },
        {"text": "\u202e\x00\u0645\u0631\u062d\u0628\u0627", "<b>": "\ud800"},
        {"text": "x" * 3_000_000},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "mixture.yaml"
    path.write_text('sources: {"<i>a": {path: a.jsonl, shuffle: none}}\nstop: all_exhausted\n')
    page = open_page(path)
    for index, row in enumerate(rows):
        page.show(f"step?step={index}&at=0")
        page.wait("document.querySelector('.detail pre')")
        assert page.texts(".sample .name") == [f"<i>a[{index}]"]
        if index == 0:
            assert page.texts(".detail pre") == [row["text"]]
    assert len(page.texts(".detail pre")[0]) == 4000
    assert "bad" not in page.driver.title
    page.check()
