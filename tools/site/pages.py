"""Collects the pages of the documentation's site; `make docs` calls it before Zensical.

    python -m tools.site.pages FOLDER

The pages are Markdown files of the repository that also read well where they are. In the site a
link to another page leads there, and a link to any other file of the repository becomes that
file's path as code, since the site has no copy of it. A link to nothing is an error.
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
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)


def collect_pages(folder: Path) -> None:
    """Write all pages and their images to a folder that is emptied first.

    Raises:
        SystemExit: for links to files that do not exist; all are named.
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
        (folder / name).write_text(text, encoding="utf-8")
    for image in sorted((ROOT / "docs").glob("*.svg")):
        shutil.copy(image, folder)
    if dead:
        raise SystemExit("docs: links to nothing:\n" + "\n".join(dead))


def _pages() -> dict[str, Path]:
    """Return the file of each page."""
    return _ELSEWHERE | {path.name: path for path in sorted((ROOT / "docs").glob("*.md"))}


def _with_links(text: str, source: Path, pages: dict[str, Path], dead: list[str]) -> str:
    """Return a page's text with links that hold in the site; add what leads nowhere to `dead`."""
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
    collect_pages(Path(sys.argv[1]))
