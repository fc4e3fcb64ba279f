"""`make push`: a folder of an encoder or model, with its card, to the Hugging Face hub.

Encoders that the same run has saved on its way (`save_at_words`) go to branches of the repository.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.cli.arguments import Parser, place
from pipeline.errors import UserError

HELP = "upload an encoder or model folder to the Hugging Face hub"
NAME = re.compile(r"[\w.-]+/[\w.-]+")
CODES = {  # that the hub takes, with an example
    "license": (r"[a-z0-9][a-z0-9.+-]*", "apache-2.0"),
    "language": (r"multilingual|code|[a-z]{2,3}(-[A-Za-z0-9]+)*", "en"),
}
Files = dict[str, Path | bytes]  # name on the hub -> the file, or its content
Commits = Mapping[str | None, Files]  # by branch; None: the main one


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--from", dest="folder", type=place, required=True, help="encoder or model folder")
    parser.add_argument("--repo", required=True, help="name on the hub, USER/NAME; it is made if it is not there")
    parser.add_argument("--public", action="store_true", help="let everybody see a new repository; private otherwise")
    parser.add_argument("--license", default=None, help="of the weights, as apache-2.0; into the card")
    parser.add_argument("--language", default=None, help="code of the language, as en; into the card")
    parser.add_argument("--base-model", default=None, help="the encoder's name on the hub; into the card of a model")
    parser.add_argument("--dry-run", action="store_true", help="list files and sizes, upload nothing")


def run(options: argparse.Namespace) -> None:
    from pipeline.cards.publish import files_of
    from pipeline.models.folder import read_config
    from pipeline.tracking.words_seen import FOLDER, saved_in

    folder: Path = options.folder.absolute()  # its name and the run that it is in are looked at
    if not NAME.fullmatch(options.repo):
        raise UserError(f"--repo is {options.repo}; it must be USER/NAME.")
    read_config(folder)  # refuses what is damaged
    about = {name: getattr(options, name) for name in ("license", "language", "base_model")}
    for name, (code, example) in CODES.items():
        if about[name] is not None and not re.fullmatch(code, about[name]):
            raise UserError(f"--{name} is {about[name]}; the hub takes codes, as {example}.")
    commits: dict[str | None, Files] = {None: files_of(folder, options.repo, about)}
    for saved in saved_in(folder.parent / FOLDER) if folder.name == "encoder" else ():
        read_config(saved.folder)
        commits[saved.branch] = files_of(saved.folder, options.repo, about, saved.branch)
    if options.dry_run:
        list_files(commits, options)
        return
    address = upload(commits, options.repo, options.public)
    branches = f" on {len(commits)} branches" if len(commits) > 1 else ""
    print(f"Uploaded {sum(map(len, commits.values()))} files, {size_of(commits):,} bytes{branches}: {address}")


def list_files(commits: Commits, options: argparse.Namespace) -> None:
    """What would be uploaded."""
    for branch, files in commits.items():
        if branch is not None:
            print(f"branch {branch}:")
        for name, file in files.items():
            print(f"{size_of({branch: {name: file}}):>15,}  {name}")
    access = "public" if options.public else "private"
    print(f"{size_of(commits):>15,}  bytes would go to {options.repo} ({access} if it is new); nothing was uploaded.")


def size_of(commits: Commits) -> int:
    """Bytes of all files."""
    files = [file for part in commits.values() for file in part.values()]
    return sum(len(file) if isinstance(file, bytes) else file.stat().st_size for file in files)


def upload(commits: Commits, repo: str, public: bool) -> str:
    """Uploads the files of each branch in one commit, those of the main one last; returns the address.

    Raises:
        UserError: no token, or the hub cannot be reached or refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    from pipeline.data.hub import is_of_network

    if get_token() is None:
        raise UserError("There is no token of the Hugging Face hub: set HF_TOKEN, or run `hf auth login` first.")
    api = HfApi(library_name="pretrain-finetune")
    try:
        address = api.create_repo(repo, private=not public, exist_ok=True)
        for branch in sorted(commits, key=lambda branch: branch is None):  # a new one begins as main
            if branch is not None:
                api.create_branch(repo, branch=branch, exist_ok=True)
            operations = [CommitOperationAdd(name, file) for name, file in commits[branch].items()]
            api.create_commit(repo, operations, commit_message="Weights, tokenizer and card", revision=branch)
    except Exception as error:
        if not is_of_network(error) and not isinstance(error, ImportError):
            raise
        message = " ".join(str(error).split())[:300]
        raise UserError(f"The hub did not take {repo}: {message or type(error).__name__}") from None
    return str(address)
