"""The card of a model that leaves its run: what it is, of which data and method, how good, how to load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kinfolk.experiment.kept_models import KeptModels
from kinfolk.experiment.outline import Outline
from kinfolk.experiment.record import read_scores
from kinfolk.experiment.score_again import read_run
from kinfolk.experiment.sections import ModelSpec
from kinfolk.federation.scaling import Scaling
from kinfolk.privacy.told import promise
from kinfolk.scores import about, summary


@dataclass(frozen=True)
class Wanted:
    """Which model of a run leaves it."""

    kind: str
    round: int
    client: str | None = None  # None: of a group, or of everyone
    group: int | None = None
    licence: str = ""

    @property
    def whose(self) -> str:
        """Whose it is, in words.

        >>> Wanted("centre", 3, group=2).whose, Wanted("centre", 3).whose
        ('of group 2', 'of all clients')
        """
        if self.client is not None:
            return f"of client {self.client}"
        return "of all clients" if self.group is None else f"of group {self.group}"


def card(kept: KeptModels, wanted: Wanted, network: nn.Module, files: Sequence[str]) -> str:
    """The card as Markdown."""
    facts, spec, outline = read_run(kept.folder), kept.spec, kept.outline
    count = sum(p.numel() for p in network.parameters())
    told = {
        "data": outline.name,
        "clients": f"{len(outline.clients):,}",
        "rows": outline.row_text or f"{list(outline.shape)}{_scaled(outline.pixels)}",
        **_standardized(outline.scaling, wanted.client),
        "predicts": _predicts(outline),
        "federation fingerprint": f"`{facts['federation']['fingerprint']}`",
        "method": facts["title"],
        "network": f"{spec.model.name}, {count:,} parameters",
        "round": f"{wanted.round} of {facts['rounds']}",
        "seed": spec.run.seed,
        **_privacy(facts.get("privacy") or {}, wanted),
        "kinfolk": facts["versions"]["kinfolk"],
        "torch": facts["versions"]["torch"],
    }
    options = [
        ("model", spec.model.options),
        ("local", vars(spec.local)),
        ("algorithm", spec.algorithm.options),
    ]
    settings = [f"{part}.{key}={value}" for part, values in options for key, value in values.items()]
    settings += [f"{key}={value}" for key, value in _beginning(spec.model).items()]
    return "\n".join(
        [
            f"# {facts['title']}: the {wanted.kind} model {wanted.whose}",
            "",
            *_table(("", ""), [(key, str(value)) for key, value in told.items()]),
            "",
            f"Settings: {', '.join(settings)}.",
            "",
            "## Scores",
            "",
            *_scores(kept, wanted),
            "",
            "## How to load",
            "",
            *_loading(kept, network, files),
            "",
            "## Licence",
            "",
            wanted.licence
            or "None was stated. Weights follow from the data: what these allow holds here as well.",
            "",
            "## Limits",
            "",
            *_limits(wanted),
            "",
        ]
    )


def _beginning(model: ModelSpec) -> dict[str, Any]:
    """What a network began with and what was trained of it, where that was set."""
    told: dict[str, Any] = {"model.weights": model.weights, "model.train": list(model.train)}
    if model.lora.rank:
        told |= {f"model.lora.{key}": value for key, value in vars(model.lora).items()}
    return {key: value for key, value in told.items() if value}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]


def _scaled(scale: tuple[float, float] | None) -> str:
    return "" if scale is None else f", bytes x taken as x * {scale[0]:g} + {scale[1]:g}"


def _standardized(scaling: Scaling | None, client: str | None) -> dict[str, str]:
    """What is done to rows before the network sees them, and to its outputs."""
    if scaling is None:
        return {}
    told = {}
    if scaling.rows:
        mean, std = "statistics", "each client's own training rows"
        own = scaling.rows.get(client or "") if scaling.by == "client" else scaling.of(None)
        if own is not None:
            mean, std = _numbers(own.mean), _numbers(own.std)
        told["standardised by"] = f"(x - mean) / std, by {scaling.by}; mean {mean}; std {std}"
    if scaling.target:
        mean, std = _numbers(scaling.target.mean), _numbers(scaling.target.std)
        told["targets"] = f"network output * std + mean; mean {mean}; std {std}"
    return told


def _privacy(facts: dict[str, Any], wanted: Wanted) -> dict[str, str]:
    """What a model's run promised its clients; what one client has trained for itself has no noise."""
    if not facts:
        return {}
    own = wanted.kind != "centre"
    return {"differential privacy": "none: it is one client's own" if own else promise(facts)}


def _numbers(values: Sequence[float], most: int = 12) -> str:
    more = f", ... (all {len(values)} in model.json)" if len(values) > most else ""
    return ", ".join(f"{value:.6g}" for value in values[:most]) + more


def _predicts(outline: Outline) -> str:
    classes, names, outputs = outline.classes, outline.class_names, outline.outputs
    if outline.kind in ("numbers", "any"):
        return f"{outputs} number{'s' if outputs > 1 else ''}"
    if outline.kind in ("labels", "soft"):
        return f"{outputs} labels, each or none" if outline.kind == "labels" else f"{outputs} classes"
    if outline.kind == "positions":
        return f"one of {outputs} classes for each position"
    shown = f" ({', '.join(names[:12])}{', ...' if len(names) > 12 else ''})" if names else ""
    return f"{classes} classes{shown}"


def _scores(kept: KeptModels, wanted: Wanted) -> list[str]:
    """By split, of those who have this model; others' rows tell nothing about it."""
    frame = read_scores(kept.folder)
    frame = frame[(frame["round"] == wanted.round) & (frame["model"] == wanted.kind)]
    members = None if wanted.group is None else kept.groups(wanted.round)[wanted.group]
    whose = [wanted.client] if wanted.client is not None else members
    if whose is not None:
        frame = frame[frame["client"].isin(whose)]
    if frame.empty:
        return ["This round was not evaluated."]
    rows: list[list[str]] = []
    for (split, score), part in frame.groupby(["split", "score"], sort=False):
        over: dict[str, Any] = summary(part["value"], part["rows"], about(score).lower_is_better)
        numbers = [f"{over[name]:.4g}" for name in ("macro", "worst")]
        rows.append([str(split), str(score), *numbers, f"{len(part):,}", f"{int(part['rows'].sum()):,}"])
    return _table(("split", "score", "mean over clients", "worst client", "clients", "rows"), rows)


def _loading(kept: KeptModels, network: nn.Module, files: Sequence[str]) -> list[str]:
    build = f"network = ...  # {kept.spec.model.name}, as printed below"
    lines = ["```python", "from safetensors.torch import load_file", "", build]
    lines += ['network.load_state_dict(load_file("model.safetensors"))', "network.eval()"]
    if "model.pt2" in files:
        lines += ["", "import torch", 'network = torch.export.load("model.pt2").module()  # needs no class']
    if "model.onnx" in files:
        lines += ["", "import onnxruntime", 'session = onnxruntime.InferenceSession("model.onnx")']
    lines += ["```", "", "The network:", "", "```text", *str(network).splitlines(), "```"]
    if "model.pt2" not in files:
        lines += [
            "",
            "`kinfolk export ... --format torch` writes a file that PyTorch loads without the class.",
        ]
    lines += [
        "",
        "With the run folder: `kinfolk.load(FOLDER).model(...)`, and `.predict(...)` for labels.",
    ]
    lines.append("`model.json` has the shape of rows, class names, columns and the scale of bytes.")
    if kept.outline.scaling is not None:
        lines.append(
            "The weights in `model.safetensors` are for standardised rows: apply `standardized` of "
            "`model.json` before, and undo it for targets after. `model.pt2` and `model.onnx` do so "
            "themselves and take rows as they came, unless each client has statistics of its own and none is "
            "named."
        )
    return lines


def _limits(wanted: Wanted) -> list[str]:
    known = {
        "centre": "It was trained by several clients and has not seen rows of any other.",
        "personal": "It is one client's own and may know little beyond that client's rows.",
        "fine-tuned": "It was fitted to one client's rows after training and may have forgotten others.",
    }
    return [
        f"- {known.get(wanted.kind, 'It was trained by the clients of the run alone.')}",
        "- Scores are of the clients above; rows from elsewhere may be answered worse, without a sign of it.",
        "- A model can reveal rows that it was trained on; whether it may leave is for their owners to say.",
    ]
