"""Make the pictures of docs/explore.md: the explorer in headless Chromium, with made-up data.

python tools/explorer_pictures.py     needs chromium, chromedriver, selenium and pillow
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from selenium import webdriver

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
WIDTH = 1_100
VIEWS = {
    "timeline": ("timeline", 640),
    "step": ("step?step=700&at=2", 560),
    "what_if": ("what-if", 640),
}
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --hide-scrollbars"
).split()
WORDS = "the loss of a run falls while its data comes in an order known before it starts".split()
SIZES = {"web": 4_000, "code": 2_500, "books": 900, "math": 700, "chat": 500}
MIXTURE = """\
sources:
  web: {path: web.jsonl}
  code: {path: code.jsonl}
  books: {path: books.jsonl}
  math: {path: math.jsonl, max_epochs: 3}
  chat: {path: chat.jsonl}
stages:
  - {name: warmup, until: 15%, weights: {web: 70, code: 20, books: 10}}
  - {name: main, until: 80%, weights: {web: 50, code: 30, books: 14, math: 6}, interpolation: linear}
  - {name: anneal, weights: {web: 20, code: 35, books: 10, math: 20, chat: 15}}
seed: 7
batch: {size: 8, collate: list}
horizon: {steps: 1500}
"""


def write_data(folder: Path) -> Path:
    """Write the mixture file and its data; return the file.

    Args:
        folder: The folder to write to.
    """
    generator = random.Random(1)
    for name, size in SIZES.items():
        texts = (" ".join(generator.choices(WORDS, k=24)) for _ in range(size))
        lines = [
            json.dumps({"id": f"{name}-{i}", "text": text}) + "\n" for i, text in enumerate(texts)
        ]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    path = folder / "mixture.yaml"
    path.write_text(MIXTURE)
    return path


def take_pictures(url: str, profile: Path) -> None:
    """Save a picture of each view.

    Args:
        url: The URL of the explorer.
        profile: An empty folder for the browser.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options, service)
    try:
        for name, (view, height) in VIEWS.items():
            size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get("about:blank")
            driver.get(f"{url}#{view}")
            time.sleep(4)
            path = PICTURES / f"explore_{name}.png"
            driver.save_screenshot(str(path))
            with Image.open(path) as picture:
                picture.convert("RGB").quantize(128).save(path, optimize=True)
    finally:
        driver.quit()


def main() -> None:
    """Start the explorer and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_data(Path(folder))
        command = [sys.executable, "-m", "penstock", "explore", str(path), "--no-open"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            take_pictures(server.stdout.readline().strip(), Path(folder) / "profile")
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


if __name__ == "__main__":
    main()
