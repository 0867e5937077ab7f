"""Figures of the report, drawn by matplotlib: the same panels, colours and words, as axes that can be changed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ._errors import InvalidError

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

Drawn: TypeAlias = Any
"""``matplotlib.axes.Axes``, or where there are several panels an array of them."""

# Widths in inches: of a page's text, and of a figure with one panel.
_PAGE, _SINGLE = 6.7, 4.5
# A panel is no narrower, in inches, unless it is one of a matrix.
_NARROWEST = 2.1
# Room in inches for labels and ticks of a panel, for a row of the legend, for its letters, and for what stands before them.
_LABELS, _ROW, _LETTER, _HANDLE = 0.55, 0.2, 0.065, 0.6
# A line of more points is drawn thin and whole: dashes would hide what it does.
_MANY = 150
_MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "x"}
_METHODS = ("e-lik", "e-post", "point", "e-log-lik")
_GRID = "#e2e2e2"
_STYLE: Any = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.linewidth": 0.8,
}


def draw(figure: dict[str, Any], ax: Any = None) -> Drawn:
    """Draws a figure into new axes, or into those that are given: one for each panel."""
    try:
        import matplotlib
        import matplotlib.pyplot as plt
    except ImportError as problem:
        raise ImportError('matplotlib is not installed: pip install "twostep[plot]"') from problem
    panels = figure["panels"]
    with matplotlib.rc_context(_STYLE):
        if ax is None:
            axes = _new_axes(plt, figure)
        else:
            axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
            if len(axes) != len(panels):
                found = f"{len(axes)} axes for {len(panels)} panels"
                raise InvalidError(found, "ax", f"give {len(panels)}, such as plt.subplots({_rows(figure)}, {_columns(figure)})[1]")
        entries: dict[str, Any] = {}
        for axis, panel in zip(axes, panels):
            entries.update({name: handle for name, handle in _panel(axis, panel).items() if name not in entries})
        _legend(axes, {name: entries[name] for name in _names(panels) if name in entries}, is_own=ax is None)
        interactive = matplotlib.is_interactive()
    # In a notebook the first figure makes matplotlib interactive, which the context would undo with its settings.
    matplotlib.interactive(interactive)
    if len(panels) == 1:
        return axes[0]
    return axes.reshape(_rows(figure), _columns(figure)) if len(axes) == _rows(figure) * _columns(figure) else axes


def _columns(figure: dict[str, Any]) -> int:
    n = len(figure["panels"])
    wanted = max(1, min(int(figure["columns"]), n))
    if _is_matrix(figure):
        return wanted
    fit = min(wanted, int(_PAGE / _NARROWEST))
    # Rows of equal length where that is possible.
    return 2 if n == 4 and fit == 3 else fit


def _rows(figure: dict[str, Any]) -> int:
    return math.ceil(len(figure["panels"]) / _columns(figure))


def _is_matrix(figure: dict[str, Any]) -> bool:
    return any(not panel["marks"] for panel in figure["panels"])


def _new_axes(plt: Any, figure: dict[str, Any]) -> Any:
    rows, columns, n = _rows(figure), _columns(figure), len(figure["panels"])
    width = _SINGLE if n == 1 else _PAGE
    labels = 0.15 if _is_matrix(figure) else _LABELS
    names = _names(figure["panels"])
    legend = _ROW * math.ceil(len(names) / _legend_columns(names, width)) + 0.1 if names else 0.0
    height = rows * (figure["aspect"] * (width / columns - labels) + labels) + legend
    _, grid = plt.subplots(rows, columns, squeeze=False, figsize=(width, height), layout="constrained")
    axes = grid.ravel()
    for unused in axes[n:]:
        unused.remove()
    return axes[:n]


def _panel(ax: Any, panel: dict[str, Any]) -> dict[str, Any]:
    """Draws a panel; the handles of its series, by name."""
    if not panel["marks"]:
        ax.set_axis_off()
        return {}
    for which in ("x", "y"):
        if panel[which]["log"]:
            getattr(ax, f"set_{which}scale")("log")
    handles: dict[str, Any] = {}
    for order, mark in enumerate(panel["marks"], start=2):
        handle = _SHAPES[mark["shape"]](ax, mark, order)
        name = mark["series"]
        # A line says more of a series than its band or its markers.
        if name and handle is not None and (name not in handles or mark["shape"] in ("line", "intervals")):
            handles[name] = handle
    for which in ("x", "y"):
        _axis(ax, panel[which], which, panel["marks"])
    ax.grid(True, color=_GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if panel["title"]:
        ax.set_title(panel["title"], loc="left")
    return handles


def _are_whole(marks: list[dict[str, Any]], which: str) -> bool:
    """Whether all places along an axis are whole numbers, as those of runs."""
    values = []
    for mark in marks:
        if mark["shape"] in ("line", "points", "dots"):
            values.append(mark["values"][:, 0 if which == "x" else 1])
        elif mark["shape"] == "intervals" and mark["horizontal"] == (which == "y"):
            values.append(mark["values"][:, 0])
    known = np.concatenate(values) if values else np.array([0.5])
    return bool(np.all(known == np.round(known)))


def _axis(ax: Any, axis: dict[str, Any], which: str, marks: list[dict[str, Any]]) -> None:
    set_ = {name: getattr(ax, f"set_{which}{name}") for name in ("label", "lim", "ticks")}
    categories = axis["categories"]
    if axis["label"]:
        set_["label"](axis["label"])
    if categories:
        set_["ticks"](range(len(categories)), categories)
        ends = (-0.5, len(categories) - 0.5)
        # The first stands at the top.
        set_["lim"](*(reversed(ends) if which == "y" else ends))
    elif not axis["log"] and not axis["bare"] and _are_whole(marks, which):
        getattr(ax, f"{which}axis").get_major_locator().set_params(integer=True)
    if not categories and axis["range"] is not None and (not axis["log"] or axis["range"][0] > 0):
        set_["lim"](*axis["range"])
    if axis["bare"]:
        set_["ticks"]([])
        if which == "y" and axis["range"] is None and not axis["log"]:
            # A density stands on its axis.
            ax.set_ylim(bottom=0.0)


def _dashes(mark: dict[str, Any]) -> Any:
    lengths = [float(length) for length in mark["dashes"].split()]
    # matplotlib counts in widths of the line.
    return (0, [length / 1.4 for length in lengths]) if lengths else "-"


def _line(ax: Any, mark: dict[str, Any], order: int) -> Any:
    values = mark["values"]
    many = len(values) > _MANY and mark["ink"].startswith("n")
    style, width = ("-", 0.7) if many else (_dashes(mark), 1.4)
    return ax.plot(values[:, 0], values[:, 1], color=mark["colour"], linestyle=style, linewidth=width, zorder=order)[0]


def _band(ax: Any, mark: dict[str, Any], order: int) -> Any:
    x, low, high = mark["values"].T
    return ax.fill_between(x, low, high, color=mark["colour"], alpha=mark["band"], linewidth=0, zorder=order)


def _markers(mark: dict[str, Any]) -> dict[str, Any]:
    colour = mark["colour"]
    style: dict[str, Any] = {"marker": _MARKERS[mark["marker"]], "color": colour, "markersize": 5.5}
    return style if mark["marker"] == "cross" else {**style, "markeredgecolor": "white", "markeredgewidth": 0.4}


def _points(ax: Any, mark: dict[str, Any], order: int) -> Any:
    x, y = mark["values"].T
    return ax.plot(x, y, linestyle="none", zorder=order, **_markers(mark))[0]


def _dots(ax: Any, mark: dict[str, Any], order: int) -> Any:
    x, y = mark["values"].T
    size, alpha = (2.8, 0.8) if mark["ink"] == "data" else (2.0, 0.5)
    style = {"marker": "o", "markersize": size, "markeredgewidth": 0, "alpha": alpha}
    return ax.plot(x, y, linestyle="none", color=mark["colour"], zorder=order, **style)[0]


def _intervals(ax: Any, mark: dict[str, Any], order: int) -> Any:
    place, low, inner_low, middle, inner_high, high = mark["values"].T
    colour, horizontal = mark["colour"], mark["horizontal"]
    lines = ax.hlines if horizontal else ax.vlines
    lines(place, low, high, color=colour, linewidth=1.2, zorder=order)
    if not np.isfinite(inner_low).any():
        # The middles are markers of their own.
        return None
    lines(place, inner_low, inner_high, color=colour, linewidth=3.2, zorder=order)
    x, y = (middle, place) if horizontal else (place, middle)
    return ax.plot(x, y, linestyle="none", zorder=order + 0.5, **{**_markers(mark), "markersize": 6.5})[0]


def _bars(ax: Any, mark: dict[str, Any], order: int) -> Any:
    left, right, bottom, top = mark["values"].T
    style = {"color": mark["colour"], "edgecolor": "white", "linewidth": 0.4, "align": "edge", "zorder": order}
    return ax.bar(left, top - bottom, right - left, bottom, **style)


def _rules(ax: Any, mark: dict[str, Any], order: int) -> Any:
    line = ax.axhline if mark["horizontal"] else ax.axvline
    style = {"color": mark["colour"], "linestyle": _dashes(mark), "linewidth": 1.1, "zorder": order}
    drawn = [line(float(at), **style) for at in mark["values"][:, 0] if np.isfinite(at)]
    return drawn[0] if drawn else None


_SHAPES = {
    "line": _line,
    "band": _band,
    "points": _points,
    "dots": _dots,
    "intervals": _intervals,
    "bars": _bars,
    "rules": _rules,
}


def _names(panels: list[dict[str, Any]]) -> list[str]:
    """Series of the legend, methods first and in the order of tables; without what the axes name already."""
    named = {name for panel in panels for which in ("x", "y") for name in panel[which]["categories"]}
    ranks: dict[str, int] = {}
    for mark in (mark for panel in panels for mark in panel["marks"]):
        rank = _METHODS.index(mark["ink"]) if mark["ink"] in _METHODS else len(_METHODS)
        if mark["series"] and mark["series"] not in named:
            ranks.setdefault(mark["series"], rank)
    return sorted(ranks, key=lambda name: ranks[name])


def _legend_columns(names: list[str], width: float) -> int:
    """As many columns as there is room for; each is as wide as its longest name."""
    for columns in range(len(names), 1, -1):
        rows, longer = divmod(len(names), columns)
        # The first columns hold what is left over.
        starts = [column * rows + min(column, longer) for column in range(columns + 1)]
        parts = [names[start:end] for start, end in zip(starts, starts[1:])]
        if sum(_HANDLE + _LETTER * max(map(len, part)) for part in parts) <= width:
            return columns
    return 1


def _legend(axes: Any, entries: dict[str, Any], is_own: bool) -> None:
    if not entries:
        return
    names, handles = list(entries), list(entries.values())
    if is_own:
        figure = axes[0].figure
        columns = _legend_columns(names, figure.get_figwidth())
        figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    else:
        shown = [ax for ax in axes if ax.axison]
        shown[0].legend(handles, names, frameon=False)
