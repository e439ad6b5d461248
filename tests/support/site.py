"""`make site`: the pages of the repository as a site in build/site/html, by Zensical; a broken link or anchor fails.

The pages are written for the code host, where README.md is the first one. Here they are copied to build/site/pages with
the links between the two folders turned, and with fences that say no more than their language.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Pages that lie beside docs/, and their names on the site.
BESIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# What the theme draws diagrams with, and fetches from a CDN unless the site has it.
MERMAID = "12.3.0"
MERMAID_SHA256 = "336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3"
_FROM_CDN = "https://unpkg.com/mermaid@12/dist/mermaid.min.js"
_OF_SITE = "assets/mermaid.min.js"
# On a telephone, a diagram is scrolled, and stays large enough to read.
STYLE = ".diagram { overflow-x: auto; }\n.diagram > .mermaid { min-width: 30rem; }\n"


def page(text: str) -> str:
    """A page of the repository as a page of the site."""
    text = re.sub(r"\]\((?:docs|\.\.)/(?=[\w-]+\.md[#)])", "](", text)
    for name, here in BESIDE.items():
        text = text.replace(f"]({name})", f"]({here})").replace(f"]({name}#", f"]({here}#")
    text = re.sub(r"^( *```\w+) .*$", r"\1", text, flags=re.MULTILINE)  # `json schema=manifest`: for tests
    diagram = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)
    return diagram.sub(lambda found: f'<div class="diagram" markdown>\n\n{found[0]}\n\n</div>', text)


def write_pages(site: Path) -> None:
    """Write what Zensical reads: the pages, and its settings with the version in the site's name."""
    pages = site / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    for path in sorted((ROOT / "docs").glob("*.md")):
        (pages / path.name).write_text(page(path.read_text()))
    (pages / "site.css").write_text(STYLE)
    for name, here in BESIDE.items():
        (pages / here).write_text(page((ROOT / name).read_text()))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    settings = (ROOT / "zensical.toml").read_text()
    (site / "zensical.toml").write_text(settings.replace('"Pumphouse"', f'"Pumphouse {version}"', 1))


def diagrams(site: Path) -> str:
    """Put mermaid into the site, so that a reader's browser asks nobody else for it; says where it comes from."""
    kept = site / f"mermaid-{MERMAID}.tgz"
    if not kept.exists():
        npm = shutil.which("npm")
        if npm is None:
            return "diagrams are drawn by unpkg.com's mermaid: there is no npm to bring it into the site"
        words = [npm, "pack", "--silent", f"mermaid@{MERMAID}"]
        if subprocess.run(words, cwd=site, check=False, stdout=subprocess.DEVNULL).returncode:
            return "diagrams are drawn by unpkg.com's mermaid: npm could not bring it into the site, see above"
    with tarfile.open(kept) as archive:
        found = archive.extractfile("package/dist/mermaid.min.js")
        assert found is not None
        script = found.read()
    if (digest := hashlib.sha256(script).hexdigest()) != MERMAID_SHA256:
        raise SystemExit(f"{kept}: mermaid.min.js has the digest {digest}, not {MERMAID_SHA256}")
    (site / "html" / _OF_SITE).write_bytes(script)
    (bundle,) = (site / "html" / "assets" / "javascripts").glob("bundle.*.min.js")
    text = bundle.read_text()
    if _FROM_CDN not in text:
        raise SystemExit(f"{bundle}: does not name {_FROM_CDN}: the theme takes its diagrams from somewhere else now")
    bundle.write_text(text.replace(_FROM_CDN, _OF_SITE))
    return "diagrams are drawn by the site's own mermaid"


def main() -> None:
    """Write the pages, build the site; with ``--diagrams`` it has everything that it shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("zensical", type=Path)
    parser.add_argument("--diagrams", action="store_true")
    asked = parser.parse_args()
    site = ROOT / "build" / "site"
    write_pages(site)
    words = [asked.zensical.absolute(), "build", "--strict", "--clean", "--config-file", site / "zensical.toml"]
    if subprocess.run(words, cwd=site, check=False).returncode:
        raise SystemExit("the site has broken links: see above; the pages are those of docs/ and beside it")
    if asked.diagrams:
        print(diagrams(site))
        print("`python3 -m http.server -d build/site/html` shows it")


if __name__ == "__main__":
    main()
