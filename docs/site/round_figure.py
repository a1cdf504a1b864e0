"""Draws docs/img/round.svg, what happens in one round: `python docs/site/round_figure.py`.

It has its own background and colours for light and dark, so that it can be read on any page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FIGURE = Path(__file__).resolve().parents[1] / "img/round.svg"
WIDTH, HEIGHT = 520, 730
LEFT, RIGHT = 20, WIDTH - 20
STYLE = """
  svg { font-family: system-ui, sans-serif; font-size: 15px; }
  .page { fill: #ffffff; } text { fill: #1f2430; } .small { font-size: 13.5px; fill: #4a5162; }
  .name { font-weight: 600; } .box { fill: #eef2fb; stroke: #6b7fb5; }
  .part { fill: #ffffff; stroke: #6b7fb5; } .own { fill: #e8f5ec; stroke: #3f8f5f; }
  .line { stroke: #4a5162; stroke-width: 1.5; fill: none; } .tip { fill: #4a5162; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #1c2029; } text { fill: #e8ebf2; } .small { fill: #b9c0d0; }
    .box { fill: #28304a; stroke: #8fa3da; } .part { fill: #1c2029; stroke: #8fa3da; }
    .own { fill: #1f3a2a; stroke: #6fbf8f; } .line { stroke: #b9c0d0; } .tip { fill: #b9c0d0; }
  }
"""
ABOUT = (
    "The experiment draws a cohort. The algorithm, a script, yields a request. The coordinator checks and "
    "counts it, an engine performs it, and each client runs a task over its own rows. Replies go back the "
    "same way: checked, sorted by client, stacked or folded. The script ends with the new state, which is "
    "scored and recorded."
)
# Name and lines of each box.
EXPERIMENT = (
    "Experiment",
    "draws the cohort of the round; afterwards scores all",
    "clients, records, checkpoints",
)
ALGORITHM = (
    "Algorithm.round",
    "a script: yields Ask or Exchange, is resumed with the",
    "answer; several requests may make a round",
)
COORDINATOR = (
    "Coordinator",
    "guard: rejects replies that are not as declared",
    "ledger of bytes, audit log, drop-outs",
)
TASK = (
    "start: from the message and the client's memory",
    "passes: training or scoring, batch by batch",
    "finish: the reply, and what the client keeps",
    "Exchange: clients send to one another instead",
)


def box(top: int, height: int, name: str, *lines: str, kind: str = "box") -> str:
    """A box over the whole width with a name and lines below it."""
    shape = f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{RIGHT - LEFT}" height="{height}" rx="8"/>'
    rows = [text(LEFT + 16, top + 26, name, "name")]
    rows += [text(LEFT + 16, top + 47 + 20 * i, line, "small") for i, line in enumerate(lines)]
    return "".join([shape, *rows])


def parts(top: int, names: list[str], kind: str = "part") -> str:
    """Small boxes side by side inside a box."""
    room = (RIGHT - LEFT - 32 + 8) / len(names)
    shapes = []
    for i, name in enumerate(names):
        x = LEFT + 16 + i * room
        shapes.append(f'<rect class="{kind}" x="{x:g}" y="{top}" width="{room - 8:g}" height="30" rx="5"/>')
        shapes.append(text(x + (room - 8) / 2, top + 20, name, "small", anchor="middle"))
    return "".join(shapes)


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def arrows(top: int, down: str, up: str) -> str:
    """A request downwards on the left and its answer upwards on the right, each with its words."""
    bottom = top + 44
    shapes = []
    for x, start, end in ((60, top + 4, bottom - 4), (270, bottom - 4, top + 4)):
        back = 9 if end < start else -9
        shapes.append(f'<path class="line" d="M{x} {start}V{end}"/>')
        shapes.append(f'<path class="tip" d="M{x} {end}l-5 {back}h10z"/>')
    return "".join([*shapes, text(72, top + 27, down, "small"), text(282, top + 27, up, "small")])


def draw() -> str:
    """The figure."""
    shapes = [
        box(20, 78, *EXPERIMENT),
        arrows(98, "state, cohort", "new state, info"),
        box(142, 78, *ALGORITHM),
        arrows(220, "request: task, messages", "a stack, or the fold of chunks"),
        box(264, 78, *COORDINATOR),
        arrows(342, "the request, counted", "replies, sorted by client"),
        box(386, 84, "Engine: one of"),
        parts(424, ["loop", "batched", "workers", "wire", "distributed"]),
        arrows(470, "message to each client", "reply: names, shapes, ranges"),
        box(514, 196, "Clients", "each runs the task over its own rows, which never leave:", kind="own"),
        parts(578, ["start", "passes over rows", "finish"]),
        *(text(LEFT + 16, 636 + 20 * i, line, "small") for i, line in enumerate(TASK)),
    ]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    page = f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="10"/>'
    about = f"<title>One round</title><desc>{escape(ABOUT)}</desc><style>{STYLE}</style>"
    return "\n".join([head, about, page, *shapes, "</svg>"]) + "\n"


if __name__ == "__main__":
    FIGURE.write_text(draw())
