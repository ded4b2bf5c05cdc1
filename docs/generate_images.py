"""Draws docs/images from the running page: python docs/generate_images.py (needs Chromium: tools/install_browser.sh)."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

COLOURS = 255
IMAGES = Path(__file__).parent / "images"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUESTION = "model=175b&gpus=1024&gpu=h100-sxm-80gb&top=12"
COMPARED = "tp=8,pp=8,vpp=12,dp=16,mbs=4,sp=1,recompute=none"
READY = ".workbench .detail:not([aria-busy=true]) .config"
SHOTS: tuple[tuple[str, str, str, dict[str, object]], ...] = (
    ("page", QUESTION, READY, {}),
    ("page-dark", QUESTION + "&compare=" + COMPARED, "table.compared", {"color_scheme": "dark"}),
    ("page-narrow", QUESTION, READY, {"viewport": {"width": 390, "height": 844}}),
    ("page-scaling", QUESTION + "&view=scaling&counts=256:4096&types=h100-sxm-80gb,a100-80gb&tokens=300B", "g.point", {}),
    ("page-search", QUESTION + "&view=searches", ".searches tbody tr", {}),
)


def main() -> None:
    """Start a service, take the pictures, end it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "autoconfig", "serve", "--port", "0", "--workers", "1"]
        service = subprocess.Popen([*command, "--database", f"sqlite:///{folder}/s.db"], stderr=subprocess.PIPE, text=True)
        try:
            assert service.stderr is not None
            shoot(service.stderr.readline().split()[-1])
        finally:
            service.terminate()
            service.wait()


def shoot(url: str) -> None:
    """Every picture."""
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=next(filter(None, map(shutil.which, CHROMIUM)), None))
        for name, link, ready, options in SHOTS:
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})  # type: ignore[arg-type]
            page = context.new_page()
            page.goto(f"{url}/#{link}")
            page.locator(f"section:not([hidden]) {ready}").first.wait_for()
            if name == "page-search":
                page.get_by_role("button", name="Search this question").click()
                page.get_by_role("button", name="Open the answer").wait_for()
            # with a palette: a third of the bytes, and no difference to see
            small = (
                Image.open(io.BytesIO(page.screenshot(full_page=True)))
                .convert("RGB")
                .quantize(COLOURS, dither=Image.Dither.NONE)
            )
            small.save(IMAGES / f"{name}.png", optimize=True)
            context.close()


if __name__ == "__main__":
    main()
