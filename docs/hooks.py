"""MkDocs hooks: pages that are made of the code, of the notebook and of files at the top of the repository.

They exist in the built site alone, so that what they show is always what the code says.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "docs")]

import generated  # noqa: E402  (found by the line above)


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages, and the figures and reports under results/."""
    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    for file in sorted((REPOSITORY / "results").rglob("*")):
        if file.suffix in (".png", ".html", ".json"):
            files.append(File.generated(config, str(file.relative_to(REPOSITORY)), abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Figures and some pages lie beside docs/ in the repository (so that links work there), and inside it in the site.

    What stands between `<!-- NAME: ... -->` and `<!-- end -->` is for readers of the repository: links to the tables.
    """
    for name, make in (("ladders", ladders), ("recipes", recipes)):
        markdown = re.sub(
            rf"<!-- {name}:.*?<!-- end -->", lambda found, make=make: make(found[0]), markdown, flags=re.S
        )
    markdown = markdown.replace("](tutorial.ipynb)", "](tutorial.md)")
    up = "../" * page.file.src_uri.count("/")
    for name, place in (("results/", "results/"), ("CONTRIBUTING.md", "contributing.md")):
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(name)}", f"]({up}{place}", markdown)
    return markdown


def ladders(links: str) -> str:
    """What the ladders in results/ladder gave: the page, the plot, and the tables but the longest."""
    parts = []
    for name, title in (("real", "On real text"), ("sample", "On the sample")):
        folder = REPOSITORY / "results/ladder" / name
        if not (folder / "ladder.md").is_file():
            parts.append(f"## {title}\n\nNot run yet with this version.\n")
            continue
        place = f"results/ladder/{name}"
        shown = (
            f"[Open its page]({place}/ladder.html){{ .md-button }}\n\n![Models by year and time]({place}/ladder.png)"
        )
        main, *others = re.split(r"^## ", (folder / "ladder.md").read_text().partition("\n")[2], flags=re.M)
        tables = "".join(f"### {part}" for part in others if not part.startswith(("Mixtures", "Continuations")))
        parts.append(f"## {title}\n\n{shown}\n{main}{tables}")
    return "\n".join(parts)


def recipes(links: str) -> str:
    """The tables and plots of results/recipes, each under the text of its link."""
    parts = []
    for title, name in re.findall(r"\[([^]]+)\]\(\S*/recipes/([^/]+)/recipes\.md\)", links):
        file = REPOSITORY / "results/recipes" / name / "recipes.md"
        picture = f"![Changes with their intervals](results/recipes/{name}/recipes.png)"
        parts.append(f"### {title}\n\n{file.read_text()}\n{picture}\n")
    return "\n".join(parts)


def tutorial() -> str:
    """The notebook with the outputs that are saved in it."""
    notebook = json.loads((REPOSITORY / "docs/tutorial.ipynb").read_text())
    parts = []
    for one in notebook["cells"]:
        source = "".join(one["source"])
        if one["cell_type"] == "markdown":
            parts.append(source)
            continue
        shell = all(line.startswith("!") for line in source.splitlines() if line and not line.startswith("#"))
        parts.append(
            f"```{'bash' if shell else 'python'}\n{re.sub('^!', '', source, flags=re.M) if shell else source}\n```"
        )
        parts += [picture_or_text(output) for output in one["outputs"]]
    return (
        "---\ndescription: Pretrain, fine-tune and use a model on the built-in sample corpus.\n---\n\n"
        + "\n\n".join(part for part in parts if part)
    )


def picture_or_text(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img src="data:image/png;base64,{data["image/png"].strip()}" alt="plot of the run" />'
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    return f"```text\n{text}\n```" if text else ""


def contributing() -> str:
    """CONTRIBUTING.md; its blocks are named by files, which are titles here."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    text = re.sub(r"\]\(docs/", "](", text)
    return re.sub(r"^```(python|yaml) (\S+)$", r'```\1 title="\2"', text, flags=re.M)


def changelog() -> str:
    return re.sub(r"\]\(docs/", "](", (REPOSITORY / "CHANGELOG.md").read_text())


PAGES: dict[str, Callable[[], str]] = {
    "tutorial.md": tutorial,
    "reference/commands.md": generated.commands,
    "reference/configuration.md": generated.configuration,
    "reference/presets.md": generated.presets,
    "reference/outputs.md": generated.outputs,
    "contributing.md": contributing,
    "changelog.md": changelog,
}
