"""Figures to files: HTML and JSON always; PDF, SVG and PNG where a Chrome is found."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.core.errors import ExportError, InputError

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["FORMATS", "find_browser", "save_figure", "save_figures"]

FORMATS = ("html", "json", "pdf", "svg", "png")
_STATIC = ("pdf", "svg", "png")
_BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    *("chrome", "microsoft-edge", "brave-browser"),
)
# Seconds for one picture; a figure of 5,000 words takes about two.
_TIMEOUT = 120.0


def find_browser() -> str | None:
    """Path of a Chrome (or Chromium, Edge, Brave) that can draw static pictures, or None.

    `BROWSER_PATH` is looked at first, then the PATH, then the places where kaleido installs or
    expects one (`plotly_get_chrome`, Program Files, /Applications).

    Raises
    ------
    ExportError : `BROWSER_PATH` is set and no executable is there.
    """
    named = os.environ.get("BROWSER_PATH")
    if named:
        found = shutil.which(named)
        if found is None:
            raise ExportError(
                f"BROWSER_PATH={named!r} is not an executable file. Set it to the Chrome or "
                "Chromium to draw with, or unset it to have one looked for."
            )
        return found
    for name in _BROWSERS:
        found = shutil.which(name)
        if found is not None:
            return found
    return _installed_by_kaleido()


def _installed_by_kaleido() -> str | None:
    from choreographer.browsers.chromium import Chromium

    found = Chromium.find_browser(skip_local=False)
    return str(found) if found and Path(found).is_file() else None


def save_figure(fig: go.Figure, path: str | Path, *, dpi: float = 300.0) -> Path:
    """Write one figure; the suffix of the path gives the format.

    Parameters
    ----------
    fig : a plotly figure.
    path : file to write, ending in .html (interactive, needs no network), .json, .pdf, .svg
        (both with editable text) or .png. Its folder is made; an existing file is replaced.
    dpi : resolution of .png, in dots per inch of the printed size.

    Returns
    -------
    The path written. The file appears whole or not at all.

    Raises
    ------
    InputError : the suffix is not one of these.
    ExportError : .pdf, .svg or .png, and no Chrome was found or it failed.
    """
    path = Path(path)
    return _save([(fig, path)], dpi)[0]


def save_figures(
    figures: Mapping[str, go.Figure],
    folder: str | Path,
    formats: Sequence[str] = ("html",),
    *,
    dpi: float = 300.0,
) -> list[Path]:
    """Write several figures in several formats, starting the browser once.

    Parameters
    ----------
    figures : name of the file, without suffix → figure.
    folder : where they go; made when missing.
    formats : any of "html", "json", "pdf", "svg", "png".
    dpi : resolution of "png".

    Returns
    -------
    Paths, figure by figure in the order of the formats.

    Raises
    ------
    InputError : an unknown format, or a name that is not a plain file name.
    ExportError : no Chrome for a static format; HTML and JSON have been written by then.
    """
    for name in figures:
        if not name or name in (".", "..") or "/" in name or "\\" in name:
            raise InputError(f"figure name {name!r} must be a file name without folders.")
    jobs = [
        (fig, Path(folder) / f"{name}.{str(format_).lstrip('.')}")
        for name, fig in figures.items()
        for format_ in formats
    ]
    return _save(jobs, dpi)


def _save(jobs: Sequence[tuple[go.Figure, Path]], dpi: float) -> list[Path]:
    if not dpi > 0:
        raise InputError(f"dpi={dpi!r} must be a positive number.")
    for _, path in jobs:
        if _format(path) not in FORMATS:
            listed = ", ".join(f".{name}" for name in FORMATS)
            raise InputError(f"{path.name!r}: a figure is written as one of {listed}.")
    for fig, path in jobs:
        if _format(path) == "html":
            _write(path, _html(fig).encode())
        elif _format(path) == "json":
            _write(path, str(fig.to_json()).encode())
    static = [(fig, path) for fig, path in jobs if _format(path) in _STATIC]
    if static:
        pictures = _draw([(fig, _format(path)) for fig, path in static], dpi)
        for (_, path), picture in zip(static, pictures, strict=True):
            _write(path, picture)
    return [path for _, path in jobs]


def _format(path: Path) -> str:
    return path.suffix.lower().lstrip(".")


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: to a file beside it, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _html(fig: go.Figure) -> str:
    """A page that needs no network, the same bytes for the same figure."""
    digest = hashlib.sha256(str(fig.to_json()).encode()).hexdigest()[:16]
    page: str = fig.to_html(
        include_plotlyjs=True,
        include_mathjax=False,
        full_html=True,
        div_id=f"workbench-{digest}",
        config={"displaylogo": False, "toImageButtonOptions": {"format": "svg"}},
    )
    return page


def _for_print(fig: go.Figure) -> dict[str, Any]:
    """The figure without what only makes sense on a screen: range sliders and their room."""
    spec: dict[str, Any] = copy.deepcopy(fig.to_dict())
    layout = spec["layout"]
    for name, axis in layout.items():
        if name.startswith("xaxis") and isinstance(axis, dict):
            axis.pop("rangeslider", None)
    meta = layout.get("meta")
    slider = float(meta.get("slider_px", 0.0)) if isinstance(meta, dict) else 0.0
    if slider:
        layout["height"] -= slider
        layout["margin"]["b"] -= slider - meta["slider_margin_px"]
        for annotation in layout.get("annotations", ()):
            if annotation.get("name") == "footnote":
                annotation["yshift"] += slider
    return spec


def _draw(jobs: Sequence[tuple[go.Figure, str]], dpi: float) -> list[bytes]:
    """Pictures by kaleido in one browser, in a thread of its own so that notebooks work too."""
    formats = sorted({name for _, name in jobs})
    browser = find_browser()
    if browser is None:
        raise ExportError(
            f"Writing {', '.join(formats)} needs a Chrome or Chromium, and none was found. "
            "(1) Install one with the system's packages, e.g. `apt-get install chromium` or "
            "`brew install --cask google-chrome`; (2) or let plotly fetch one: "
            "`plotly_get_chrome`; (3) or name one that is elsewhere: "
            "`export BROWSER_PATH=/path/to/chrome`. HTML and JSON need none: save to .html, "
            "and its camera button gives SVG."
        )
    outcome: list[list[bytes] | BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(_render(jobs, browser, dpi)))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="workbench-export")
    thread.start()
    thread.join()
    result = outcome[0]
    if isinstance(result, BaseException):
        raise ExportError(
            f"{browser} could not draw the figure ({type(result).__name__}: {result}). Try it "
            "with another browser named by BROWSER_PATH, or save to .html."
        ) from result
    return result


async def _render(jobs: Sequence[tuple[go.Figure, str]], browser: str, dpi: float) -> list[bytes]:
    from kaleido import Kaleido

    pictures = []
    # No MathJax: it would come from the network, and turn "$5 or $6" in a story into a formula.
    async with Kaleido(n=1, timeout=_TIMEOUT, mathjax=False, path=browser) as kaleido:
        for fig, name in jobs:
            spec = _for_print(fig)
            options = {
                "format": name,
                "scale": dpi / 96 if name == "png" else 1,
                "width": spec["layout"].get("width"),
                "height": spec["layout"].get("height"),
            }
            options = {key: value for key, value in options.items() if value is not None}
            pictures.append(bytes(await kaleido.calc_fig(spec, opts=options)))
    return pictures
