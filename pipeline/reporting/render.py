"""A page as HTML (self-contained: no address of another machine), as Markdown and as LaTeX."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache

import jinja2
from markupsafe import Markup, escape

from pipeline.reporting.page import Page, Section, Table
from pipeline.tracking.tables import latex_table, markdown_table
from pipeline.version import __version__

UNBROKEN = 30  # characters of a cell


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters["bold"] = bold
    return made


def html(page: Page) -> str:
    """The page in one file. It runs no script but its own, which the browser knows by its hash."""
    script = Markup(environment().get_template(page.script).render()) if page.script else Markup("")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = environment().get_template("page.html.j2")
    return template.render(page=page, version=__version__, script=script, hash=digest)


def bold(cell: str) -> Markup:
    """A cell as HTML: `**text**` in bold, the rest escaped; a short one stays on a line."""
    text = Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(cell))))
    return Markup('<span class="whole">{}</span>').format(text) if len(cell) <= UNBROKEN else text


def markdown(page: Page) -> str:
    """The figures and tables of a page."""
    lines = [f"# {page.title}", page.about]
    lines += [
        f"- {figure.name}: **{figure.value}**{f' ({figure.beside})' if figure.beside else ''}"
        for figure in page.figures
    ]
    text = "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]) + "\n"
    for section, tables in _with_tables(page):
        text += f"\n## {section.title}\n"
        for table in tables:
            text += f"\n{table.caption}\n\n{markdown_table(table.head, table.rows)}"
            text += "".join(f"\n{note}\n" for note in table.notes)
    return text


def latex(page: Page) -> str:
    """The tables of a page, for \\input in a document with booktabs."""
    parts = ["% \\usepackage{booktabs}\n"]
    for section, tables in _with_tables(page):
        for number, table in enumerate(tables):
            label = section.anchor + (f"-{number + 1}" if number else "")
            aligned = "".join("r" if table.is_number(column) else "l" for column in range(len(table.head)))
            caption = " ".join([table.caption, *table.notes])
            parts.append(latex_table(table.head, table.rows, aligned=aligned, caption=caption, label=f"tab:{label}"))
    return "\n".join(parts)


def _with_tables(page: Page) -> list[tuple[Section, list[Table]]]:
    found = [(section, [block for block in section.blocks if isinstance(block, Table)]) for section in page.shown]
    return [(section, tables) for section, tables in found if tables]
