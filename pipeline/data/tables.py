"""Labeled files -> rows with their file and line: .csv, .tsv, .json, .jsonl, .parquet, CoNLL columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

from pipeline.data.delimited import Refuse, refuse, table
from pipeline.data.files import BROKEN, COMPRESSIONS, unless_damaged
from pipeline.errors import UserError
from pipeline.storage.json_lines import may_have_surrogates, repair_surrogates
from pipeline.storage.validation import parse_json
from tasks.dataset import Row, repeated, shortened
from tasks.errors import RowError

Rows = Iterator[tuple[int, Mapping[Any, Any]]]  # with the number of their line


def read_rows(path: Path, refuse: Refuse = refuse) -> list[Row]:
    """Reads a .csv or .tsv (with a header, see `table`), .json, .jsonl, .parquet or CoNLL file, also under .gz and .xz.

    Args:
        refuse: what to do with a row that cannot be read: by default it is raised.

    Raises:
        UserError: the file cannot be read; names it.
    """
    try:
        if path.name.lower().endswith((".parquet.gz", ".parquet.xz")):
            raise UserError(f"{path} is compressed twice; unpack it: .parquet is already compressed.")
        if kind_of(path) == "parquet":
            return [(f"{path}, row {number}", row) for number, row in read_parquet(path, path)]
        if kind_of(path) not in SUFFIXES:
            raise UserError(unreadable(path))
        with open_table(path) as file:
            if kind_of(path) == "json":
                return [(f"{path}, {what} {n}", row) for what, n, row in read_json(file, path, refuse)]
            return [(f"{path}, line {n}", row) for n, row in READERS[kind_of(path)](file, path, refuse)]
    except UnicodeDecodeError:
        raise UserError(unless_damaged(path, not_utf8(path))) from None
    except (OSError, *BROKEN) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None


def kind_of(path: Path) -> str:
    """The ending of a file's name, without that of a compressed one."""
    name = path.name[: -len(path.suffix)] if path.suffix in COMPRESSIONS else path.name
    return name.rpartition(".")[2].lower()


def unreadable(path: Path) -> str:
    """What to do with a file of an unknown kind."""
    return (
        f"{path} cannot be read as a table: labeled data are .csv, .tsv, .json, .jsonl, .parquet or CoNLL columns. "
        "Save it as one of them (in Excel: 'CSV UTF-8')."
    )


def not_utf8(path: Path | str) -> str:
    """What to do with a file in another encoding: Excel writes that of Windows, or UTF-16."""
    with open(path, "rb") as file:
        wide = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
    name, other = ("UTF-16", "UTF-16") if wide else ("", "CP1252")
    return (
        f"{path} is not UTF-8 text{f', but {name}' if name else ''}: save it as 'CSV UTF-8' in Excel, or convert it "
        f"(iconv -f {other} -t UTF-8 {path} > new-file)."
    )


def open_table(path: Path) -> IO[str]:
    """A file as UTF-8, compressed or not; a newline alone ends its lines, since a text may hold other ends."""
    return COMPRESSIONS.get(path.suffix, open)(path, "rt", encoding="utf-8-sig", newline="\n")


def read_parquet(source: Path | IO[bytes], path: Path) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(source)
        if twice := repeated(file.schema_arrow.names):
            raise UserError(f"{path} has two columns named '{shortened(twice)}'.")
        yield from enumerate(file.read().to_pylist(), start=1)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} cannot be read: {error}.") from None


def lines_of(file: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file, start=1):
        yield number, line.rstrip("\n").removesuffix("\r")


# ---------------------------------------------------------------------- JSON


def read_jsonl(file: Iterable[str], path: Path, refuse: Refuse = refuse) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in lines_of(file):
        if not line.strip():
            continue
        try:
            row = parse_json(line, f"{path}, line {number}")
            if not isinstance(row, dict):
                raise RowError(f"{path}, line {number}", "is no JSON object", kind="no JSON object")
        except UserError as error:
            refuse(error)
        else:
            yield number, mended(row) if may_have_surrogates(line) else row


def read_json(
    file: IO[str], path: Path, refuse: Refuse = refuse
) -> Iterator[tuple[Literal["line", "row"], int, Mapping[str, Any]]]:
    """Rows of a `.json` file: a list of objects, one object a line, or what pandas writes.

    Raises:
        UserError: it is none of these.
    """
    text = file.read()
    lines = text.split("\n")
    if any(line.strip() for line in lines[1:]) and lines[0].startswith("{") and lines[0].rstrip().endswith("}"):
        yield from (("line", number, row) for number, row in read_jsonl(lines, path, refuse))
        return
    content = parse_json(text, path)
    content = mended(content) if may_have_surrogates(text) else content
    if isinstance(content, dict) and isinstance(content.get("data"), list):  # of many sets; pandas: "split", "table"
        columns, content = content.get("columns"), content["data"]
        names = columns if isinstance(columns, list) and all(isinstance(name, (str, int)) for name in columns) else []
        if names and all(isinstance(row, list) and len(row) == len(names) for row in content):
            if (twice := repeated(names)) is not None:
                raise UserError(f"{path} has two columns named '{twice}'.")
            content = [dict(zip(names, row, strict=True)) for row in content]
        elif content and all(isinstance(row, dict) and isinstance(row.get("paragraphs"), list) for row in content):
            content = questions_of(content, path)
    elif isinstance(content, dict) and content:  # by column, as pandas writes it by default
        rows = by_column(content)
        content = content if rows is None else rows
    if isinstance(content, dict) and content and not any(isinstance(value, (list, dict)) for value in content.values()):
        content = [content]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise UserError(f"{path} is not a table: it must be a list of JSON objects, or one object a line.")
    yield from (("row", number, row) for number, row in enumerate(content, start=1))


def questions_of(articles: list[Any], path: Path) -> list[dict[str, Any]]:
    """Rows of articles with paragraphs and their questions, as the files of SQuAD have them.

    Raises:
        UserError: a paragraph has no questions.
    """
    try:
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        return [{**question, "context": one["context"]} for one in paragraphs for question in one["qas"]]
    except (KeyError, TypeError):
        raise UserError(f"{path} has paragraphs, as the files of SQuAD, but not all with a context and qas.") from None


def by_column(content: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Rows of columns, each a list of as many values, or values by the same numbers of rows; None of others."""
    columns = list(content.values())
    if content.keys() & {"words", "tokens"} and all(map(is_sentence, columns)):
        return [dict(content)]
    if all(isinstance(column, list) for column in columns) and len({len(column) for column in columns}) == 1:
        return [dict(zip(content, values, strict=True)) for values in zip(*columns, strict=True)]
    if all(isinstance(column, dict) and column.keys() == columns[0].keys() for column in columns):
        return [{name: column[row] for name, column in content.items()} for row in columns[0]]
    return None


def is_sentence(value: Any) -> bool:
    """Whether it is a list of single words, or of their tags."""
    return isinstance(value, list) and all(isinstance(part, str) and len(part.split()) == 1 for part in value)


def mended(value: Any) -> Any:
    """A JSON value without lone surrogates, which tokenizers refuse."""
    if isinstance(value, dict):
        return {repair_surrogates(name): mended(part) for name, part in value.items()}
    if isinstance(value, list):
        return [mended(part) for part in value]
    return repair_surrogates(value) if isinstance(value, str) else value


# ---------------------------------------------------------------------- CoNLL

MARKS = ("newdoc", "newpar")  # comments of CoNLL-U that have no value


def read_conll(file: IO[str], path: Path, refuse: Refuse = refuse) -> Iterator[tuple[int, Mapping[int, list[str]]]]:
    """Sentences separated by blank lines: number of a column -> its values, one per word.

    Columns are separated by tabs, or by spaces if the first word's line has no tab. A line that begins with # is a
    comment if its number of columns differs, or if it precedes a sentence and has a = (`# id = 1`). `-DOCSTART-` and
    CoNLL-U's multiword (3-4) and empty (8.1) rows are skipped.
    """
    lines = list(lines_of(file))
    first = next((line for _, line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))), "")
    by_tab, begin = "\t" in first, 0

    def split(line: str) -> list[str]:
        """The columns of a line; a no-break space belongs to its word."""
        return line.split("\t") if by_tab else re.split("[ \t]+", line.strip(" \t"))

    width = len(split(first))
    rows: list[list[str]] = []
    for number, line in lines:
        values = [value.strip(" ") or value for value in split(line)]
        metadata = line.startswith("# ") and not rows and ("=" in line or line[1:].strip() in MARKS)
        comment = line.startswith("#") and (metadata or len(values) != width)
        if not line.strip():
            if rows:
                yield begin, dict(enumerate(map(list, zip(*rows, strict=True))))
            rows = []
        elif comment or values[0] == "-DOCSTART-" or (len(values) == 10 and re.fullmatch(r"\d+[-.]\d+", values[0])):
            continue
        elif len(values) != width:
            problem = f"has {len(values)} columns, the lines before it have {width}"
            refuse(RowError(f"{path}, line {number}", problem, kind="more or fewer columns than those before"))
        else:
            begin = begin if rows else number
            rows.append(values)
    if rows:
        yield begin, dict(enumerate(map(list, zip(*rows, strict=True))))


READERS: dict[str, Callable[[IO[str], Path, Refuse], Rows]] = {
    "tsv": lambda file, path, refuse: table(file, path, "tsv", refuse)[1],
    "csv": lambda file, path, refuse: table(file, path, "csv", refuse)[1],
    "jsonl": read_jsonl,
    **dict.fromkeys(("conll", "conllu", "txt", "bio", "iob", "iob2"), read_conll),
}
TABLES = ("csv", "tsv", "json", "jsonl", "parquet")
INPUTS = ("lines", *TABLES)  # what predict reads
SUFFIXES = (*READERS, "json", "parquet")
