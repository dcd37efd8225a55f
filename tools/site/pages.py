"""Collects the pages of the documentation's site; `make docs` calls it before Zensical.

    python -m tools.site.pages FOLDER MERMAID

The pages are Markdown files of the repository, which can also be read there. In the site a link to
another page leads to that page, and a link to any other file of the repository becomes the file's
path as code, since the site has no copy of it. A dead link is an error. MERMAID is the script that
draws diagrams: pages with a diagram load it from the site, not from unpkg.com as the theme would.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ELSEWHERE = {
    "index.md": ROOT / "README.md",
    "benchmarks.md": ROOT / "benchmarks" / "README.md",
    "contributing.md": ROOT / "CONTRIBUTING.md",
    "changelog.md": ROOT / "CHANGELOG.md",
    "demo.md": ROOT / "tools" / "train_demo" / "README.md",
    "digits.md": ROOT / "tools" / "train_digits" / "README.md",
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_DIAGRAM = "```mermaid\n"
_SCRIPT = "mermaid.min.js"
_FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)


def collect_pages(folder: Path, mermaid: Path) -> None:
    """Write all pages, their images and Mermaid's script to a folder, which is emptied first.

    Raises:
        SystemExit: for dead links; the message lists all of them.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pages = _pages()
    dead: list[str] = []
    for name, source in pages.items():
        parts = _FENCE.split(source.read_text(encoding="utf-8"))
        text = "".join(
            part if part.startswith("```") else _with_links(part, source, pages, dead)
            for part in parts
        )
        if _DIAGRAM in text:
            text += f'\n<script src="{_SCRIPT}"></script>\n'
        (folder / name).write_text(text, encoding="utf-8")
    for image in sorted([*(ROOT / "docs").glob("*.svg"), *(ROOT / "docs").glob("*.png")]):
        shutil.copy(image, folder)
    shutil.copy(ROOT / "tools" / "site" / "site.css", folder)
    shutil.copy(mermaid, folder / _SCRIPT)
    if dead:
        raise SystemExit("docs: dead links:\n" + "\n".join(dead))


def _pages() -> dict[str, Path]:
    """Return the file of each page."""
    return _ELSEWHERE | {path.name: path for path in sorted((ROOT / "docs").glob("*.md"))}


def _with_links(text: str, source: Path, pages: dict[str, Path], dead: list[str]) -> str:
    """Return a page's text with the links of the site; add dead links to `dead`."""
    names = {path: name for name, path in pages.items()}

    def replace(link: re.Match[str]) -> str:
        image, label, target = link.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not path:
            return link[0]
        found = Path(os.path.normpath(source.parent / path))
        if not found.exists():
            dead.append(f"{source.relative_to(ROOT)}: {target}")
        if found in names:
            return f"[{label}]({names[found]}{'#' if anchor else ''}{anchor})"
        if image:
            return f"![{label}]({found.name})"
        where = f"`{found.relative_to(ROOT)}`"
        return label if label.strip("`") in where else f"{label} ({where})"

    return _LINK.sub(replace, text)


if __name__ == "__main__":
    collect_pages(*map(Path, sys.argv[1:]))
