"""The reference of a module's public names, from its docstrings and comments.

Docstrings are read as they are written: plain text, `Args:` with a line for each, and examples after `>>>`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import textwrap
from types import ModuleType
from typing import Any, ForwardRef

from kinfolk.methods import Method

STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def api_page(module: ModuleType, about: str) -> str:
    """Every name of the module's `__all__`: functions, classes, algorithms and other values."""
    kinds: dict[str, list[str]] = {"Functions": [], "Classes": [], "Values and types": [], "Algorithms": []}
    for name in sorted(module.__all__, key=str.lower):
        thing = getattr(module, name)
        if isinstance(thing, Method):
            kinds["Algorithms"].append(_method(name, thing))
        elif inspect.isfunction(thing):
            kinds["Functions"].append(function(name, thing, 3))
        elif inspect.isclass(thing) and not hasattr(thing, "__origin__"):
            kinds["Classes"].append(_class(name, thing))
        else:
            kinds["Values and types"].append(_value(module, name, thing))
    parts = [f"# {module.__name__}", about]
    for kind, entries in kinds.items():
        parts += [f"## {kind}", *entries] if entries else []
    return "\n\n".join(parts) + "\n"


def function(name: str, thing: Any, level: int) -> str:
    """A function: its heading, its parameters, its docstring."""
    signature = f"```python\n{name}{_signature(thing)}\n```"
    return "\n\n".join(filter(None, [f"{'#' * level} {name}", signature, docstring(thing)]))


def docstring(thing: Any) -> str:
    """A docstring as Markdown.

    >>> docstring(type("T", (), {"__doc__": "Adds.\\n\\nArgs:\\n    a: One.\\n\\n>>> 1\\n1"})).split("\\n\\n")
    ['Adds.', '- `a`: One.', '```python\\n>>> 1\\n1\\n```']
    """
    parts = []
    for block in re.split(r"\n\s*\n", inspect.getdoc(thing) or ""):
        head, _, rest = block.partition("\n")
        if block.lstrip().startswith(">>>"):
            parts.append(f"```python\n{textwrap.dedent(block)}\n```")
        elif head in ("Args:", "Attributes:"):
            entries = re.split(r"\n(?=\S)", textwrap.dedent(rest))
            parts.append(
                "\n".join(re.sub(r"^([\w, ]+): *", r"- `\1`: ", entry, count=1) for entry in entries)
            )
        else:
            parts.append(textwrap.dedent(block))
    return "\n\n".join(parts)


def _signature(thing: Any) -> str:
    """Parameters as they are written, one a line where they are many."""
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return ""
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        stars = STARS.get(parameter.kind, "")
        hint = "" if parameter.annotation is parameter.empty else f": {_hint(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        parts.append(stars + parameter.name + hint + default)
    returned = signature.return_annotation
    end = "" if returned in (signature.empty, None, "None") else f" -> {_hint(returned)}"
    line = f"({', '.join(parts)}){end}"
    return line if len(line) < 70 else "(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


def _hint(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    text = repr(value)
    return "..." if text.startswith("<") or " at 0x" in text else text


def _class(name: str, kind: type[Any]) -> str:
    """A class: how it is made, fields with the comments beside them, public methods and properties."""
    parts = [f"### {name}"]
    if not issubclass(kind, Exception) and not getattr(kind, "_is_protocol", False):
        parts.append(f"```python\n{name}{_signature(kind)}\n```")
    parts.append(docstring(kind))
    notes = {field: note for field, note in comments(kind).items() if note and not field.startswith("_")}
    parts.append("\n".join(f"- `{field}`: {note}" for field, note in notes.items()))
    for inner, member in vars(kind).items():
        if inner.startswith("_") or not inspect.getdoc(getattr(kind, inner)):
            continue
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if inspect.isfunction(plain):
            parts.append(function(f"{name}.{inner}", plain, 4))
        elif isinstance(member, property) or type(member).__name__ == "cached_property":
            parts.append(f"#### {name}.{inner}\n\n{docstring(member)}")
    return "\n\n".join(filter(None, parts))


def _method(name: str, method: Method) -> str:
    summary = (inspect.getdoc(method) or "").partition("\n")[0]
    return f"### {name}\n\n`{method.name}`: {summary} [Options](algorithms.md#{method.name})."


def _value(module: ModuleType, name: str, thing: Any) -> str:
    """A value or a type alias: the line that defines it, and the comment above."""
    home = _home(module, name)
    for node in ast.parse(inspect.getsource(home)).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            source = ast.get_source_segment(inspect.getsource(home), node) or ""
            shown = f"```python\n{source}\n```"
            if isinstance(thing, dict):  # a registry: what is in it
                shown = "Has " + ", ".join(f"`{key}`" for key in thing) + "."
            return "\n\n".join(filter(None, [f"### {name}", _comment(home, node), shown]))
    return f"### {name}\n\n`{thing!r}`"


def _home(module: ModuleType, name: str) -> ModuleType:
    """The module that a public name is defined in."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return importlib.import_module(node.module or "")
    return module


def comments(kind: type[Any]) -> dict[str, str]:
    """What is said of each field of a class: the comment above it, or behind it."""
    if not dataclasses.is_dataclass(kind):
        return {}
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            module = sys.modules[base.__module__]
            for node in ast.walk(ast.parse(inspect.getsource(module))):
                if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                    found |= {
                        inner.target.id: _comment(module, inner)
                        for inner in node.body
                        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name)
                    }
    return found


def _comment(module: ModuleType, node: ast.stmt) -> str:
    """The comment behind a statement, or the lines of comment right above it."""
    lines = inspect.getsource(module).splitlines()
    behind = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :].strip()
    if behind.startswith("#"):
        return behind.strip("# ")
    above: list[str] = []
    at = node.lineno - 2
    while at >= 0 and lines[at].strip().startswith("#"):
        above.insert(0, lines[at].strip().lstrip("# "))
        at -= 1
    return " ".join(above)
