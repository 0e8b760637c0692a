"""One print theme: colours and dashes of the methods, sizes, and the footnote of every figure."""

from __future__ import annotations

import html
import textwrap
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.core.checks import check_option
from workbench.core.errors import InputError

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = [
    "ANNOTATION_NOTES",
    "COLUMN_MM",
    "FONT_PX",
    "SMALL_PX",
    "MethodStyle",
    "add_footnote",
    "column_px",
    "describe_methods",
    "horizontal_legend",
    "method_order",
    "method_style",
    "mm",
    "panel_title",
    "plain",
    "translucent",
    "use_theme",
    "wrapped",
]

# 96 px are one inch in SVG and in the PDF a Chrome prints, so sizes on paper are exact.
PX_PER_MM = 96 / 25.4
PX_PER_PT = 96 / 72
COLUMN_MM = {"single": 90.0, "onehalf": 140.0, "double": 180.0}
FONT_PX = 8 * PX_PER_PT
SMALL_PX = 7 * PX_PER_PT
FONT = "Arial, Helvetica, Liberation Sans, sans-serif"

# Okabe & Ito's palette for the methods of EM-LLM (warm: fixed length; cool: surprisal; black:
# people), Tol's muted one for the other proposals. Both keep apart under colour blindness.
_COLOURS = {
    "H": "#000000",
    "R": "#7F7F7F",
    "F": "#D55E00",
    "FM": "#E69F00",
    "FC": "#CC79A7",
    "S": "#0072B2",
    "SM": "#56B4E9",
    "SC": "#009E73",
    "B": "#332288",
    "E": "#999933",
    "T": "#44AA99",
    "P": "#882255",
    "K": "#B0A030",
    "G": "#117733",
    "V": "#AA4499",
}
_SPARE = ("#332288", "#999933", "#44AA99", "#882255", "#117733", "#AA4499")
_SYSTEMS = {
    "infllm": ("#D55E00", "1px,2px", "square-open"),
    "window": ("#7F7F7F", "4px,3px", "x"),
    "full": ("#000000", "solid", "cross"),
    "fot": ("#332288", "1px,2px", "hexagon-open"),
    "longllama": ("#882255", "1px,2px", "pentagon-open"),
    "mt": ("#999933", "1px,2px", "star-open"),
}
_PROPOSALS = {
    "R": "random",
    "F": "fixed length",
    "S": "surprisal",
    "B": "Bayesian surprise",
    "E": "entropy",
    "T": "sentences",
    "P": "Bayesian online change-point",
    "K": "kernel change-point",
    "G": "greedy state search",
    "V": "event HMM",
    "H": "people",
}
_REFINEMENTS = {
    "": "",
    "M": "refined by modularity",
    "C": "refined by conductance",
    "O": "global optimum of modularity",
}
_DASHES = {"": "solid", "M": "5px,2px", "C": "1.5px,1.5px", "O": "6px,2px,1.5px,2px"}
_SYMBOLS = {
    "H": "circle",
    "R": "x-thin-open",
    "F": "square",
    "S": "circle",
    "B": "pentagon",
    "E": "triangle-down",
    "T": "hourglass",
    "P": "hexagon",
    "K": "octagon",
    "G": "bowtie",
    "V": "cross",
}
_REFINED_SYMBOLS = {"M": "triangle-up", "C": "diamond", "O": "star"}

# Who made the boundaries that a story is compared with; stands under every figure.
ANNOTATION_NOTES = {
    "people": "boundaries reported by people",
    "author": "the author's scenes, not people's boundaries",
    "model": "boundaries made by a model, not people's",
}


@dataclass(frozen=True)
class MethodStyle:
    """How a method is drawn in every figure: colour (#RRGGBB), line dash, marker symbol."""

    colour: str
    dash: str
    symbol: str


def mm(length: float) -> float:
    """Millimetres on paper → pixels (96 to the inch)."""
    return length * PX_PER_MM


def column_px(width: str | float) -> float:
    """Width of a figure in pixels.

    Parameters
    ----------
    width : "single" (90 mm), "onehalf" (140 mm), "double" (180 mm), or a number of millimetres.
    """
    if isinstance(width, str):
        check_option("width", width, COLUMN_MM)
        return mm(COLUMN_MM[width])
    if not float(width) >= 40:
        raise InputError(f"width={width!r}: a figure needs at least 40 millimetres.")
    return mm(float(width))


def plain(text: object) -> str:
    """Text as plotly shall show it: literally, whatever markup a story contains.

    Plotly reads a subset of HTML in titles, names, hover texts and annotations, turns text between
    dollar signs into mathematics, and replaces %{...} in templates. (It does not know the entities
    of quotation marks, which therefore stay as they are: the text is never put in an attribute.)
    """
    escaped = html.escape(str(text), quote=False)
    return escaped.replace("$", "&#36;").replace("%{", "%&#123;")


def _split(code: str) -> tuple[str, str, str]:
    """Code → proposal, refinement, argument: "FM:64" → "F", "M", "64"."""
    base, _, argument = str(code).partition(":")
    return base[:1], base[1:], argument


def method_style(code: str) -> MethodStyle:
    """Colour, dash and marker of a method: the same in every figure, for any code.

    The eight codes of EM-LLM have colours of their own. Another refinement of a known proposal
    takes the proposal's colour and its own dash and marker; a code with an argument ("F:64") or
    an unknown one takes them from a checksum of its name, so that it never changes either. Memory
    systems have the colour of the method that forms their events, dotted, with open markers.
    """
    code = str(code)
    if code.startswith("emllm-"):
        return _memory_style(code.removeprefix("emllm-"))
    if code in _SYSTEMS:
        return MethodStyle(*_SYSTEMS[code])
    proposal, refinement, argument = _split(code)
    base = proposal + refinement
    number = zlib.crc32(str(code).encode())
    colour = _COLOURS.get(base) or _COLOURS.get(proposal) or _SPARE[number % len(_SPARE)]
    dash = _DASHES.get(refinement, "3px,2px,1px,2px")
    symbol = _REFINED_SYMBOLS.get(refinement) or _SYMBOLS.get(proposal, "circle")
    if argument:
        dash = ("8px,2px", "2px,2px", "8px,2px,2px,2px")[number % 3]
        symbol = ("pentagon", "hexagon", "star", "cross", "bowtie")[number % 5]
    return MethodStyle(colour, dash, symbol)


def _memory_style(method: str) -> MethodStyle:
    code, _, buffer = method.partition("+")
    style = method_style(code)
    dash = "6px,2px,1px,2px,1px,2px" if buffer else "1px,2px"
    return MethodStyle(style.colour, dash, f"{style.symbol}-open" + ("-dot" if buffer else ""))


def method_order(codes: Iterable[str]) -> list[str]:
    """Codes without repeats in the papers' order: R, F, FM, FC, S, SM, SC, others, H."""
    proposals, refinements = list(_PROPOSALS), list(_REFINEMENTS)

    def rank(code: str) -> tuple[int, int, str]:
        proposal, refinement, _ = _split(code)
        first = proposals.index(proposal) if proposal in proposals else len(proposals) - 1.5
        second = refinements.index(refinement) if refinement in refinements else 9
        return int(2 * first), second, code

    return sorted({str(code) for code in codes}, key=rank)


def describe_methods(codes: Iterable[str]) -> str:
    """A key to the codes in use: "F fixed length, S surprisal; M refined by modularity"."""
    split = [_split(code) for code in method_order(codes)]
    proposals = dict.fromkeys(p for p, _, _ in split if p in _PROPOSALS)
    refinements = [r for r in _REFINEMENTS if r and any(r == other for _, other, _ in split)]
    parts = [
        ", ".join(f"{letter} {_PROPOSALS[letter]}" for letter in proposals),
        ", ".join(f"{letter} {_REFINEMENTS[letter]}" for letter in refinements),
    ]
    return "; ".join(part for part in parts if part)


def translucent(colour: str, opacity: float) -> str:
    """#RRGGBB and an opacity → "rgba(r, g, b, a)"."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def use_theme() -> str:
    """Register the template "workbench" when it is first needed; return the name to draw with.

    Plotly's default template is left as it is: only figures of the workbench use this one.
    """
    import plotly.graph_objects as go
    import plotly.io as pio

    if "workbench" not in pio.templates:
        axis = {
            "automargin": False,
            "exponentformat": "power",
            "linewidth": 0.75,
            "minexponent": 3,
            "showgrid": False,
            "tickfont": {"size": SMALL_PX},
            "ticklen": 3,
            "tickwidth": 0.75,
            "title": {"font": {"size": FONT_PX}, "standoff": 4},
            "zeroline": False,
        }
        layout: dict[str, Any] = {
            "annotationdefaults": {"font": {"size": FONT_PX}, "showarrow": False},
            "colorway": ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"],
            "font": {"family": FONT, "size": FONT_PX, "color": "#000000"},
            "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
            "hovermode": "closest",
            "legend": {"font": {"size": SMALL_PX}, "itemwidth": 30, "tracegroupgap": 2},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "title": {"font": {"size": FONT_PX}},
            "xaxis": axis,
            "yaxis": axis,
        }
        pio.templates["workbench"] = go.layout.Template(layout=layout)
    return "simple_white+workbench"


def panel_title(
    story: object, model: object, *, model_too: bool, room_px: float, ending: str = ""
) -> str:
    """Title of a column of panels: the story, and the model where several are shown.

    Parameters
    ----------
    room_px : width there is; longer names lose their middle.
    ending : said after the story's name, never cut.
    """
    # A character of bold sans-serif text takes 0.56 em on average.
    columns = int(room_px / (0.56 * FONT_PX))
    title = f"<b>{plain(_shortened(story, columns - len(ending)) + ending)}</b>"
    return title + (f"<br>{plain(_shortened(model, columns))}" if model_too else "")


def _shortened(text: object, columns: int) -> str:
    """Text of at most so many characters (at least nine), an ellipsis in its middle."""
    whole, columns = str(text), max(9, columns)
    if len(whole) <= columns:
        return whole
    tail = (columns - 1) // 2
    return f"{whole[: columns - 1 - tail]}…{whole[len(whole) - tail :]}"


def horizontal_legend(
    names: Sequence[str], width_px: float, margins_px: float
) -> tuple[dict[str, Any], float]:
    """A legend centred above the panels, and the height in pixels its lines take.

    Plotly reserves no room for a legend above the axes, so its entries get a known width. Without
    names there is no legend.
    """
    if not names:
        return {}, 6
    entry = 2 + 0.48 * SMALL_PX * max(len(name) for name in names)
    # Plotly draws 30 px of line and 16 px of gaps beside each text, within the axes' width.
    room, beside = width_px - margins_px, 46.0
    lines = -(-len(names) // max(1, int(room // (entry + beside))))
    per_line = -(-len(names) // lines)
    if lines > 1:
        # Wide enough that a line breaks after as many entries as the others hold.
        entry = max(entry, room / (per_line + 1) - beside + 1)
    legend = {
        "orientation": "h",
        # Both in the container: a legend placed by the axes would push the margins.
        "x": 0.5,
        "xanchor": "center",
        "xref": "container",
        "y": 1,
        "yanchor": "top",
        "yref": "container",
        "entrywidth": entry,
        "entrywidthmode": "pixels",
    }
    return legend, 6 + 20 * lines


def wrapped(lines: Sequence[str], width_px: float, font_px: float = SMALL_PX) -> list[str]:
    """Plain lines broken to a width; a character of a sans-serif text takes 0.47 em on average."""
    columns = max(20, int(width_px / (0.47 * font_px)))
    return [part for line in lines for part in textwrap.wrap(line, columns)]


def add_footnote(
    fig: go.Figure,
    *,
    provenance: Iterable[object] = (),
    annotations: Mapping[str, str] | None = None,
    notes: Iterable[object] = (),
    below: float = 40.0,
) -> go.Figure:
    """Write what a reader must know under the figure, and make the figure that much taller.

    Parameters
    ----------
    fig : a figure whose width, height and margins are set; changed in place and returned.
    provenance : sentences on the model ("SmolLM2-135M-Instruct, 4-bit: for demonstration and
        tests, not publication"); repeats and missing values are dropped.
    annotations : story → who marked its boundaries: "people", "author" or "model". What is not
        people's is said to be so.
    notes : further sentences, shown first.
    below : height in pixels of what stands between the axes and the footnote.
    """
    margin, width = fig.layout.margin, float(fig.layout.width)
    paragraphs = [" ".join(_unique(notes)), _annotation_note(annotations or {})]
    paragraphs += [text if text.endswith(".") else f"{text}." for text in _unique(provenance)]
    lines = wrapped([text for text in paragraphs if text], width - 16)
    if not lines:
        return fig
    fig.add_annotation(
        name="footnote",
        text="<br>".join(plain(line) for line in lines),
        x=0,
        xref="paper",
        xanchor="left",
        xshift=8 - float(margin.l),
        y=0,
        yref="paper",
        yanchor="top",
        yshift=-below,
        align="left",
        showarrow=False,
        font={"size": SMALL_PX, "color": "#333333"},
    )
    bottom = below + len(lines) * SMALL_PX * 1.3 + 6
    extra = bottom - float(margin.b)
    fig.update_layout(margin={"b": bottom}, height=float(fig.layout.height) + extra)
    return fig


def _annotation_note(annotations: Mapping[str, str]) -> str:
    stories: dict[str, list[str]] = {}
    for story, kind in annotations.items():
        stories.setdefault(str(kind), []).append(str(story))
    said = [(ANNOTATION_NOTES.get(kind, kind), names) for kind, names in stories.items()]
    if len(said) == 1:
        return f"Annotation: {said[0][0]}."
    return " ".join(f"Annotation of {', '.join(names)}: {text}." for text, names in said)


def _unique(values: Iterable[object]) -> list[str]:
    """Texts without repeats, empty ones and missing values, in order."""
    texts = (str(value).strip() for value in values if isinstance(value, str))
    return list(dict.fromkeys(text for text in texts if text))
