"""Pages in headless Chromium, where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
needs_browser = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")


def _run(folder: Path, *arguments: str) -> str:
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([CHROMIUM, *options, *arguments], check=True, capture_output=True, text=True, timeout=120)
    return done.stdout


def picture(page: Path, width: int, folder: Path) -> Path:
    """A screenshot of the top of a page."""
    file = folder / "page.png"
    _run(folder, f"--screenshot={file}", f"--window-size={width},1500", f"file://{page}")
    return file


def opened(page: Path, folder: Path) -> str:
    """The page as it is when its own script, if it has one, has run."""
    return _run(folder, "--dump-dom", f"file://{page}")


def measured(html: str, width: int, folder: Path, *, scripts: bool = True) -> tuple[int, int, int]:
    """Of a page in a window of `width` pixels: the width that it needs, the one it has, and the drawings shown.

    Args:
        scripts: whether those of the page run.
    """
    probe = (
        "<script>document.title = [document.documentElement.scrollWidth, innerWidth, "
        "[...document.querySelectorAll('svg')].filter(svg => svg.clientWidth).length].join(' ')</script></body>"
    )
    # The page forbids scripts that it does not know: a copy that allows one says how wide it is.
    html = re.sub(r"<meta http-equiv=.*?>", "", html)
    if not scripts:
        html = re.sub(r"<script>.*?</script>", "", html, flags=re.S)
    source = html.replace("</body>", probe).replace("&", "&amp;").replace('"', "&quot;")
    frame = f'<iframe srcdoc="{source}" style="width:{width}px;height:2000px" '
    frame += 'onload="document.title=this.contentDocument.title"></iframe>'
    file = folder / "probe.html"
    file.write_text(f"<!doctype html><title></title>{frame}")
    [title] = re.findall(r"<title>(.+?)</title>", opened(file, folder))[:1]
    needed, inner, drawings = map(int, title.split())
    return needed, inner, drawings
