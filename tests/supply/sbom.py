"""What Kinfolk is made of, as a software bill of materials: `make sbom` writes build/sbom.json (CycloneDX).

Listed is what a plain installation brings: the dependencies of pyproject.toml and theirs, in the versions
that are installed here, with licences and who needs whom. What only development or an extra needs is not.
"""

from __future__ import annotations

from importlib.metadata import Distribution, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def needs(of: Distribution) -> list[str]:
    """The names of what a distribution needs here, without its extras.

    >>> "torch" in needs(distribution("kinfolk")), "pytest" in needs(distribution("kinfolk"))
    (True, False)
    """
    wanted = [Requirement(text) for text in of.requires or ()]
    return sorted(
        canonicalize_name(w.name) for w in wanted if not w.marker or w.marker.evaluate({"extra": ""})
    )


def closure(name: str) -> dict[str, list[str]]:
    """Everything that a distribution needs, it included, and what each of them needs."""
    found: dict[str, list[str]] = {}
    open_ = [canonicalize_name(name)]
    while open_:
        one = open_.pop()
        if one not in found:
            found[one] = needs(distribution(one))
            open_ += found[one]
    return dict(sorted(found.items()))


def bill(name: str = "kinfolk") -> Bom:
    """The bill of an installed distribution."""
    tree = closure(name)
    parts = {one: component(distribution(one), one) for one in tree}
    parts[name].type = ComponentType.APPLICATION
    made = Bom(components=(part for one, part in parts.items() if one != name))
    made.metadata.component = parts[name]
    for one, below in tree.items():
        made.register_dependency(parts[one], [parts[b] for b in below])
    return made


def component(of: Distribution, name: str) -> Component:
    """One distribution: name, version, licence."""
    licence = of.metadata.get("License-Expression") or of.metadata.get("License") or ""
    # Old metadata hold the whole text of a licence where its name should be.
    known = [LicenseFactory().make_from_string(licence)] if 0 < len(licence) < 80 else []
    where = PackageURL("pypi", name=name, version=of.version)
    kind = ComponentType.LIBRARY
    return Component(type=kind, name=name, version=of.version, purl=where, bom_ref=str(where), licenses=known)


def main(out: Path = ROOT / "build/sbom.json") -> None:
    """Write the bill."""
    made = bill()
    out.parent.mkdir(exist_ok=True)
    out.write_text(JsonV1Dot6(made).output_as_string(indent=2))
    print(f"{len(made.components)} packages beside Kinfolk: {out}")


if __name__ == "__main__":
    main()
